"""Rendered sprites: a square, an ellipse and a heart that vary in scale, orientation and position.

All lengths are in units of a 64 x 64 frame, whatever the resolution. A pixel is on when its centre lies inside the
outline, so images are exactly binary.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid.data import storage
from unbraid.data.base import data_home, dataset
from unbraid.data.factors import Factor, FactorDataset, Pixels, pack_bits
from unbraid.errors import UsageError
from unbraid.progress import progress
from unbraid.threads import one_thread

Sprite = Literal["square", "ellipse", "heart"]

FRAME = 64.0
SQUARE = 9.6
ELLIPSE = (12.766, 7.214)
HEART = (9.5938, 0.66204, 1.43494)
REACH = SQUARE * math.sqrt(2)
"""Largest distance of an outline from its centre at scale 1: the square's corner."""

FACTORS = ("shape", "scale", "orientation", "posX", "posY")

_RENDERER_VERSION = 1  # raise it whenever the same settings should give other images


def in_square(u: Tensor, v: Tensor) -> Tensor:
    """Return whether points lie inside max(|u|, |v|) < 9.6."""
    return torch.maximum(u.abs(), v.abs()) < SQUARE


def in_ellipse(u: Tensor, v: Tensor) -> Tensor:
    """Return whether points lie inside (u / 12.766)^2 + (v / 7.214)^2 < 1."""
    return (u / ELLIPSE[0]).square() + (v / ELLIPSE[1]).square() < 1


def in_heart(u: Tensor, v: Tensor) -> Tensor:
    """Return whether points lie inside the outline of a heart.

        u = 9.5938 sin^3 t,    v = -[0.66204 (13 cos t - 5 cos 2t - 2 cos 3t - cos 4t) + 1.43494]

    A vertical line meets the outline where cos t = ±sqrt(1 - sin^2 t). In w = cos^2 t, the bracketed sum is
    4 - 2w - 8w^2 ± sqrt(w) (19 - 8w): a middle and a half height.
    """
    width, height, shift = HEART
    w = (1 - (u / width).abs().pow(2 / 3)).clamp_min(0)
    middle, half = 4 - 2 * w - 8 * w.square(), w.sqrt() * (19 - 8 * w)
    return ((v + shift) / -height - middle).abs() < half


OUTLINES: dict[Sprite, Callable[[Tensor, Tensor], Tensor]] = {
    "square": in_square,
    "ellipse": in_ellipse,
    "heart": in_heart,
}


def render(
    size: int,
    shapes: Sequence[Sprite],
    scales: Sequence[float],
    orientations: Sequence[float],
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    at_once: int | None = None,
) -> Tensor:
    """Render every combination as packed bits [n, size * size / 8]; the last argument varies fastest.

    The sprite's centre is (16 + 32 x, 16 + 32 y) and its frame is turned by the orientation, y pointing down. Only a
    window is evaluated, for all shapes and orientations at once. It has `at_once` centres along y: one on a CPU, and
    all of them on a GPU, where a launch costs more than pixels.
    """
    device = torch.get_default_device()
    device = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
    lengths = [len(values) for values in (shapes, scales, orientations, xs, ys)]
    at_once = at_once or (1 if device.type == "cpu" else len(ys))
    with device, one_thread(), progress("Rendering sprites", len(scales) * len(xs)) as bar:
        packed = torch.zeros(*lengths, -(-size * size // 8), dtype=torch.uint8)
        turns = torch.tensor([(math.cos(angle), math.sin(angle)) for angle in orientations], dtype=torch.float64)
        for (k, scale), (i, x) in itertools.product(enumerate(scales), enumerate(xs)):
            cos, sin = (turns / scale).T[:, :, None, None, None]  # [orientation, 1, 1, 1] each
            columns, dx = _window(size, [x], REACH * scale)
            for j in range(0, len(ys), at_once):
                rows, dy = _window(size, ys[j : j + at_once], REACH * scale)
                u, v = cos * dx[0] - sin * dy[..., None], sin * dx[0] + cos * dy[..., None]
                frames = torch.zeros(len(shapes), len(orientations), len(dy), size, size, dtype=torch.bool)
                for m, shape in enumerate(shapes):
                    frames[m, :, :, rows, columns] = OUTLINES[shape](u, v)
                bits = pack_bits(frames.flatten(0, 2)).unflatten(0, frames.shape[:3])
                packed[:, k, :, i, j : j + at_once] = bits
            bar.advance()
    return packed.flatten(0, 4)


def _window(size: int, places: Sequence[float], reach: float) -> tuple[slice, Tensor]:
    """Return the pixels along one axis that sprites may touch, and their distances from the centre of each."""
    unit, centres = FRAME / size, [16 + 32 * place for place in places]
    first = min(size, max(0, math.floor((min(centres) - reach) / unit)))
    last = max(first, min(size, math.ceil((max(centres) + reach) / unit)))
    pixels = (torch.arange(first, last, dtype=torch.float64) + 0.5) * unit
    return slice(first, last), pixels - torch.tensor(centres, dtype=torch.float64)[:, None]


@dataset("sprites", images=737_280, shape=(1, 64, 64), factors=FACTORS)
def sprites(
    *,
    size: int = 64,
    shapes: tuple[Sprite, ...] = ("square", "ellipse", "heart"),
    scales: int = 6,
    orientations: int = 40,
    positions: int = 32,
) -> FactorDataset:
    """Rendered squares, ellipses and hearts in every scale, orientation and position.

    Scales run from 0.5 to 1, orientations from 0 to 2 pi with both ends, positions from 0 to 1 along each axis. A
    single scale is 1, a single orientation 0, a single position the middle; a factor with one value is left out.
    """
    _check_settings(size, shapes, scales, orientations, positions)
    places = _space_values(0.0, 1.0, positions, single=0.5)
    sizes = _space_values(0.5, 1.0, scales, single=1.0)
    values = (shapes, sizes, _space_values(0.0, 2 * math.pi, orientations, single=0.0), places, places)
    key = hashlib.sha256(repr((_RENDERER_VERSION, FRAME, SQUARE, ELLIPSE, HEART, size, values)).encode()).hexdigest()
    path = data_home() / f"sprites-{key[:16]}.safetensors"
    return storage.read_or_make(path, lambda: _render_all(size, values))


@dataset("sprites-small", images=1_536, shape=(1, 32, 32), factors=("scale", "posX", "posY"))
def sprites_small(
    *,
    size: int = 32,
    shapes: tuple[Sprite, ...] = ("square",),
    scales: int = 6,
    orientations: int = 1,
    positions: int = 16,
) -> FactorDataset:
    """Rendered upright squares that vary in scale and position: small enough for a first run."""
    data = sprites(size=size, shapes=shapes, scales=scales, orientations=orientations, positions=positions)
    return replace(data, name="sprites-small")


def _check_settings(size: int, shapes: tuple[Sprite, ...], *counts: int) -> None:
    if size < 1 or min(counts) < 1:
        raise UsageError("sprites: size, scales, orientations and positions must all be at least 1.")
    if not shapes or len(set(shapes)) < len(shapes) or not set(shapes) <= set(OUTLINES):
        raise UsageError(f"sprites: shapes must name at least one of {', '.join(OUTLINES)}, and none of them twice.")


def _space_values(first: float, last: float, count: int, single: float) -> tuple[float, ...]:
    """Return `count` values from `first` to `last`, both included, or the value `single` for a count of 1."""
    return tuple(np.linspace(first, last, count).tolist()) if count > 1 else (single,)


def _render_all(size: int, values: tuple[tuple[Any, ...], ...]) -> FactorDataset:
    factors = tuple(Factor(name, len(v), v) for name, v in zip(FACTORS, values, strict=True) if len(v) > 1)
    pixels = Pixels(render(size, *values), (1, size, size), bits=True)
    return FactorDataset("sprites", pixels, factors, source="rendered by unbraid")
