"""Picture files of any mode as bytes [channels, height, width].

Transparency is laid over white, 16-bit values v become v / 257, rounded, palettes and CMYK become RGB, and the
orientation that a camera noted is applied. Shrinking averages areas.
"""

import io
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from unbraid.data.file_formats import explain_errors
from unbraid.errors import DataError, UsageError
from unbraid.progress import progress

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

Mode = Literal["L", "RGB"]
Source = Path | bytes
Item = TypeVar("Item")


class UnreadablePictureError(DataError):
    """A picture is broken, or cannot be opened."""


def list_pictures(folder: Path) -> list[str]:
    """Return the pictures below a folder by their relative paths, in the order of the paths' parts."""
    found: list[tuple[str, ...]] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        try:
            with os.scandir(folder.joinpath(*parts)) as entries:  # a million files: no path and no stat for each
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((*parts, entry.name))
                    elif os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file():  # noqa: PTH122
                        found.append((*parts, entry.name))
        except OSError as error:
            reason = f"{error.filename} cannot be read ({error.strerror}); change its permissions, or move it."
            raise DataError(reason) from error
    return ["/".join(parts) for parts in sorted(found)]


def read_picture(source: Source, name: str, mode: Mode, size: int | None = None, crop: int | None = None) -> np.ndarray:
    """Read one picture as bytes [channels, height, width]; errors call it `name`.

    `size` resizes its central square (of `crop` pixels, if given) to size x size.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    with _explain_picture(name), Image.open(stream) as picture:
        plain = flatten(ImageOps.exif_transpose(picture), mode)
    if size is not None or crop is not None:
        plain = _crop_square(plain, size, crop)
    array = np.asarray(plain)
    return array[None] if mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_alike(paths: Sequence[Path], names: Sequence[str], size: int | None, title: str) -> Tensor:
    """Read pictures as one tensor [n, channels, height, width]: grey if all of them are, and RGB otherwise.

    `size` resizes the central square of each to size x size; without it, all must have the same size. Errors call the
    pictures by their `names`.
    """
    named = list(zip(paths, names, strict=True))
    mode = choose_mode(named, size)
    return read_all(named, lambda picture: read_picture(*picture, mode, size), title)


def choose_mode(named: Iterable[tuple[Path, str]], size: int | None) -> Mode:
    """Return `L` if all pictures are grey, and `RGB` otherwise; raise if their sizes differ and nothing resizes them.

    Only headers are read. Errors call the pictures by their names.
    """
    first, grey = None, True
    for path, name in named:
        mode, shape = _read_header(path, name)
        first = first or (name, shape)
        grey = grey and mode in GREY_MODES
        if size is None and shape != first[1]:
            shown, other = (f"{width} x {height}" for width, height in (first[1], shape))
            raise DataError(f"{first[0]} is {shown} pixels and {name} is {other}; resize them with data.size=….")
    return "L" if grey else "RGB"


def flatten(picture: Image.Image, mode: Mode) -> Image.Image:
    """Convert a picture of any mode to 8-bit grey or RGB."""
    if picture.mode == "F":
        values = np.asarray(picture)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise ValueError("its float pixels lie outside [0, 1]")
        picture = Image.fromarray((values * 255).round().astype(np.uint8))
    elif picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its integer pixels do not fit 16 bits")
        picture = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture).convert("RGB")
    return picture if picture.mode == mode else picture.convert(mode)


def resize(picture: Image.Image, size: int) -> Image.Image:
    """Resize a square picture: average areas to shrink it, interpolate bilinearly to enlarge it."""
    if size < 1:
        raise UsageError(f"size must be at least 1, not {size}.")
    shrinks = size <= picture.width
    return picture.resize((size, size), Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR)


def read_all(sources: Sequence[Item], read: Callable[[Item], np.ndarray], title: str) -> Tensor:
    """Read every source, in order and on all cores, into one tensor [n, channels, height, width]."""
    with ThreadPoolExecutor() as pool:
        return stack(pool.map(read, sources), len(sources), title)


def stack(arrays: Iterable[np.ndarray], count: int, title: str) -> Tensor:
    """Stack `count` pictures of one shape into a tensor, as they come; `title` names them in errors and progress."""
    images = None
    with progress(f"Reading {title}", count) as bar:
        for row, array in enumerate(arrays):
            if images is None:
                images = torch.empty((count, *array.shape), dtype=torch.uint8, device="cpu")
            if array.shape != images.shape[1:]:
                first, other = tuple(images.shape[1:]), array.shape
                raise DataError(f"{title}: picture {row} is {other}, the first one {first}; set data.size=….")
            images[row] = torch.from_numpy(np.array(array))
            bar.advance()
    if images is None:
        raise DataError(f"{title} holds no pictures.")
    return images


def count_bytes(path: Path, size: int | None) -> int:
    """Return the bytes of a decoded picture, resized to `size` if that is given."""
    mode, (width, height) = _read_header(path, str(path))
    return (1 if mode in GREY_MODES else 3) * (width * height if size is None else size * size)


def read_size(path: Path) -> tuple[int, int]:
    """Return width and height of a picture as shown, without decoding its pixels."""
    return _read_header(path, str(path))[1]


def _explain_picture(name: str) -> AbstractContextManager[None]:
    return explain_errors(name, "a readable picture", UnreadablePictureError)


def _read_header(path: Path, name: str) -> tuple[str, tuple[int, int]]:
    """Return mode and size as shown (width, height), without decoding the pixels."""
    with _explain_picture(name), Image.open(path) as picture:
        width, height = picture.size
        turned = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        return picture.mode, (height, width) if turned else (width, height)


def _crop_square(picture: Image.Image, size: int | None, crop: int | None) -> Image.Image:
    side = min(*picture.size, *([crop] if crop else []))
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side))
    return picture if size is None or size == side else resize(picture, size)
