"""MNIST in up to five styles that share nothing but the digit.

Every modality shows another image of a row's digit, drawn in its own style. A hash of seed, style and row decides
which image it is, and its colours and shapes. Test rows show test images, and training rows training images. Pixels
are computed in whole numbers, so every machine and device makes the same bytes.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.base import dataset
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.files import Recipe, load_stored
from unbraid.data.mnist import mnist_recipe
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import Modality
from unbraid.errors import DataError, UsageError
from unbraid.progress import progress
from unbraid.threads import one_thread

Vary = Callable[..., Tensor]
"""`vary(name, low, high, *shape)` draws whole numbers from low to high, both included, for each row [rows, *shape]."""

NAME = "mnist-styles"
UNIT = 1 << 12
"""One pixel in the fixed-point numbers that turn an image."""

_ROWS_AT_A_TIME = 256  # few enough for a processor's cache


def stripes(ink: Tensor, vary: Vary) -> Tensor:
    """Draw bright strokes on stripes of two dark colours, whose direction and width vary."""
    y, x = _grid(ink)
    across, down, phase = vary("across", -64, 64, 1, 1), vary("down", 24, 64, 1, 1), vary("phase", 0, 255, 1, 1)
    wave = (2 * ((across * x + down * y + phase) & 255) - 255).abs()
    ground = _mix(wave, _draw_colour(vary, "first", 0, 110), _draw_colour(vary, "second", 0, 50))
    return _mix(ink, _draw_bright_colour(vary, "ink"), ground)


def paper(ink: Tensor, vary: Vary) -> Tensor:
    """Draw thick dark strokes on tinted, ruled paper."""
    thick = _dilate(ink)
    y, _ = _grid(ink)
    rules = 255 * ((y + vary("offset", 0, 7, 1, 1)) % vary("spacing", 5, 8, 1, 1) == 0)
    ground = _mix(rules, _draw_colour(vary, "rule", 110, 200), _draw_colour(vary, "tint", 205, 255))
    return _mix(thick, _draw_colour(vary, "ink", 0, 80), ground)


def outline(ink: Tensor, vary: Vary) -> Tensor:
    """Draw the bright contour around the strokes, on a nearly black ground."""
    return _mix(_dilate(ink) - ink, _draw_bright_colour(vary, "line"), _draw_colour(vary, "ground", 0, 40))


def slanted(ink: Tensor, vary: Vary) -> Tensor:
    """Draw turned and sheared strokes; ink and ground each run from one colour to another."""
    turned = _turn(ink, vary("degrees", -25, 25), vary("percent", -35, 35))
    y, x = (255 * place // (place.numel() - 1) for place in _grid(ink))
    ramp = torch.where(vary("upright", 0, 1, 1, 1) == 1, y, x)
    ground = _mix(ramp, _draw_colour(vary, "first", 0, 120), _draw_colour(vary, "second", 0, 120))
    return _mix(turned, _mix(ramp, _draw_bright_colour(vary, "one"), _draw_bright_colour(vary, "other")), ground)


def tiles(ink: Tensor, vary: Vary) -> Tensor:
    """Draw a random dark tile all over, and its negative where the strokes are."""
    side = 7
    height, width = ink.shape[-2:]
    tile = vary("tile", 0, 105, 3, side, side)
    ground = tile.repeat(1, 1, -(-height // side), -(-width // side))[..., :height, :width]
    return _mix(ink, 255 - ground, ground)


STYLES: dict[str, Callable[[Tensor, Vary], Tensor]] = {
    style.__name__: style for style in (stripes, paper, outline, slanted, tiles)
}


def recipe(modalities: int, seed: int) -> Recipe:
    """Return the recipe of MNIST, from whose stored file the styles are drawn."""
    return replace(mnist_recipe(), name=NAME, file="mnist")


@dataset("mnist-styles", images=70_000, shape=(3, 28, 28), factors=("digit",), modalities=tuple(STYLES), recipe=recipe)
def mnist_styles(*, modalities: int = 5, seed: int = 0) -> MultimodalDataset:
    """MNIST in up to five styles, each row showing other images of one digit; the official test rows are held out."""
    if not 2 <= modalities <= len(STYLES):
        raise UsageError(f"{NAME}: modalities must be from 2 to {len(STYLES)}, not {modalities}.")
    if seed < 0:
        raise UsageError(f"{NAME}: seed must be 0 or above, not {seed}.")
    return draw_styles(load_stored(recipe(modalities, seed)), modalities, seed)


def draw_styles(data: FactorDataset, modalities: int = 5, seed: int = 0) -> MultimodalDataset:
    """Return grey images [n, 1, height, width] of bytes with one factor in the first `modalities` styles."""
    images = data.pixels.stored
    if images.ndim != 4 or images.shape[1] != 1 or images.dtype != torch.uint8 or data.table is None:
        raise DataError(f"{data.name}: styles are drawn from grey images of bytes with classes.")
    device = torch.get_default_device()
    images, styles, names = images[:, 0].to(device), [], list(STYLES)[:modalities]
    with one_thread(), progress("Drawing styles", len(names) * len(data)) as bar:
        for name in names:
            rows = choose_shown_rows(data, seed, name).to(device)
            drawn = torch.empty(len(data), 3, *images.shape[1:], dtype=torch.uint8, device=device)
            for first in range(0, len(data), _ROWS_AT_A_TIME):
                part = torch.arange(first, min(first + _ROWS_AT_A_TIME, len(data)), device=device)
                ink = images[rows[part]].to(torch.int32)
                drawn[part] = STYLES[name](ink, partial(_draw_integers, seed, name, part)).to(torch.uint8)
                bar.advance(len(part))
            styles.append(Modality(name, "image", Pixels(drawn, tuple(drawn.shape[1:]))))
    return multimodal(NAME, styles, data.factors, data.table, data.held_out, "drawn by unbraid from the official files")


def choose_shown_rows(data: FactorDataset, seed: int, name: str) -> Tensor:
    """Return the row whose image each row shows [n], at random among rows of its class and its part of the data."""
    assert data.table is not None
    device = data.table.device
    part = torch.zeros(len(data), dtype=torch.int64, device=device)
    if data.held_out is not None:
        part[data.held_out] = 1
    group = part * data.sizes[0] + data.table[:, 0]
    drawn = noise.bits(noise.seed_tensor(seed, device=device), 0, f"{NAME}/{name}/row", (len(data),))[0]
    shuffled = drawn.argsort(stable=True)
    shown = torch.empty_like(shuffled)
    shown[group.argsort(stable=True)] = shuffled[group[shuffled].argsort(stable=True)]
    return shown


def _draw_integers(seed: int, style: str, rows: Tensor, name: str, low: int, high: int, *shape: int) -> Tensor:
    bits = noise.bits(torch.full_like(rows, seed), rows, f"{NAME}/{style}/{name}", shape)
    return low + ((bits & (2**31 - 1)) % (high - low + 1)).to(torch.int32)


def _draw_colour(vary: Vary, name: str, low: int, high: int) -> Tensor:
    return vary(name, low, high, 3, 1, 1)


def _draw_bright_colour(vary: Vary, name: str) -> Tensor:
    """Draw a colour with one full channel and none that is dark [rows, 3, 1, 1]."""
    colour, full = _draw_colour(vary, name, 120, 255), vary(f"{name}/full", 0, 2, 1, 1, 1)
    return torch.where(full == torch.arange(3, device=colour.device).view(3, 1, 1), 255, colour)


def _grid(ink: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of each pixel: [height, 1] and [1, width]."""
    height, width = (torch.arange(length, device=ink.device, dtype=torch.int32) for length in ink.shape[-2:])
    return height[:, None], width[None]


def _mix(ink: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return `one` where ink [rows, height, width] is 255, `other` where it is 0, and rounded mixtures in between."""
    share = (ink + (ink >> 7)).unsqueeze(1)  # of 256, so that a shift can divide
    return (share * (one - other)).add_(128).bitwise_right_shift_(8).add_(other)


def _dilate(ink: Tensor) -> Tensor:
    """Return the largest of each pixel and its eight neighbours."""
    for axis in (-1, -2):
        before, after = ink.roll(1, axis), ink.roll(-1, axis)
        before.narrow(axis, 0, 1).zero_()
        after.narrow(axis, ink.shape[axis] - 1, 1).zero_()
        ink = ink.maximum(before).maximum(after)
    return ink


def _turn(ink: Tensor, degrees: Tensor, percent: Tensor) -> Tensor:
    """Turn images by degrees [rows] and shear them by percent [rows] around their middle, with linear interpolation."""
    rows, height, width = ink.shape
    angles = torch.arange(-180, 181, dtype=torch.float64, device="cpu") * (math.pi / 180)
    table = (torch.stack([angles.cos(), angles.sin()]) * UNIT).round().to(ink)
    cos, sin = table[:, degrees + 180].view(2, rows, 1, 1)
    y, x = _grid(ink)
    dy, dx = 2 * y - (height - 1), 2 * x - (width - 1)  # in half pixels, so that the middle is whole
    share = percent.view(rows, 1, 1)  # of x, taken away for each y before the turn
    down = ((cos + sin * share // 100) * dy - sin * dx + (height - 1) * UNIT) >> 1
    across = ((sin - cos * share // 100) * dy + cos * dx + (width - 1) * UNIT) >> 1
    edge = 2  # all four neighbours of any point outside are blank
    blank = torch.nn.functional.pad(ink, (edge,) * 4).flatten(1)
    top, left = (down >> 12).clamp(-edge, height) + edge, (across >> 12).clamp(-edge, width) + edge
    corner = (top * (width + 2 * edge) + left).flatten(1).to(torch.int64)
    low, right = (down & (UNIT - 1)) >> 4, (across & (UNIT - 1)) >> 4  # of 256
    upper, lower = (
        _interpolate(blank.gather(1, place), blank.gather(1, place + 1), right.flatten(1))
        for place in (corner, corner + width + 2 * edge)
    )
    return ((_interpolate(upper, lower, low.flatten(1)) + 32768) >> 16).view_as(down)


def _interpolate(one: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Return 256 times the mean in which `other` has `share` of 256."""
    return 256 * one + share * (other - one)
