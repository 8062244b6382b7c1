"""The size to which pictures are resized if nobody gave one."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unbraid.data.picture_files import read_size

HEADERS = 256
"""Pictures, evenly spaced, whose sizes are read."""

LARGEST_KEPT_SIDE = 128
"""Larger pictures are resized: the time of a step grows with the pixels."""

SIZES = (32, 64)


class ChosenSize(NamedTuple):
    """The side of square pictures, and the reason for it."""

    size: int
    reason: str


def choose_size(paths: Sequence[Path]) -> ChosenSize | None:
    """Return the size for pictures, or None if they keep theirs: all alike, and no side above 128."""
    sizes = {read_size(path) for path in paths[:: max(1, len(paths) // HEADERS)]}
    if not sizes or (len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT_SIDE):
        return None
    shortest = min(min(size) for size in sizes)
    size = max((each for each in SIZES if each <= shortest), default=SIZES[0])
    if len(sizes) > 1:
        return ChosenSize(size, "the pictures have different sizes; their middle squares are resized")
    width, height = next(iter(sizes))
    return ChosenSize(size, f"{width}x{height} pixels would train slowly; the middle squares are resized")
