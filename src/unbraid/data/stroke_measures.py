r"""Thickness and width of written strokes, measured on grey images (the idea is castro2019's, Morpho-MNIST).

The ink is the region above half of an image's maximum. Its outline is found to a fraction of a pixel: pixel centres
are joined by straight interpolation over triangles (a cell's two neighbouring centres and its middle, whose value is
their mean), in each of which the outline is one straight line. This gives area A, perimeter P and Euler characteristic
chi (pieces minus holes) of the ink, and the points of the outline.

**Thickness.** A pen of width t that is drawn along a smooth curve covers, with round ends (Steiner's formula),

    A = P t / 2 - chi pi t^2 / 4,    so    t = (P - sqrt(P^2 - 4 pi chi A)) / (pi chi),    t = 2 A / P for chi = 0,

exactly: a bar (chi = 1), a ring (0) and an 8 (-1) alike. On bars and rings of 2 to 5 pixels the result is at most .2
too small; a blob, which is no stroke, is judged less well, since the root magnifies errors of P. castro2019 averages
the distance to the background along the skeleton of an enlarged image instead; this needs no skeleton.

**Width.** The outline's extent from left to right, after the slant is taken out: x is sheared to x - k (y - mean y),
k = Cov(x, y) / Var(y) of the ink, since a narrow digit that leans would otherwise count as wide.

Reference: Castro, Tan, Kainz, Konukoglu and Glocker (2019), Morpho-MNIST: quantitative assessment and diagnostics for
representation learning, JMLR 20.
"""

from typing import Any, NamedTuple

import numpy as np

from unbraid.errors import DataError
from unbraid.progress import progress

IMAGES_AT_A_TIME = 2048
_TRIANGLE_AREA = 0.25  # a quarter of a cell


def stroke_thickness(images: Any) -> np.ndarray:
    """Return the thickness of strokes in pixels [n], of images [n, h, w] of bytes or floats; 0 without ink."""
    return measure_strokes(images)[:, 0]


def digit_width(images: Any) -> np.ndarray:
    """Return the width of the ink in pixels [n], without its slant, of images [n, h, w]; 0 without ink."""
    return measure_strokes(images)[:, 1]


def measure_strokes(images: Any) -> np.ndarray:
    """Return thickness and width of each image [n, 2], float64, in pixels."""
    images = np.asarray(images)
    if images.ndim != 3 or images.dtype.kind not in "buif":
        raise DataError(f"Strokes are measured on images [n, h, w] of numbers, not on {images.dtype} {images.shape}.")
    if images.dtype.kind == "f" and not np.isfinite(images).all():
        raise DataError("Strokes cannot be measured on images with NaN or infinite values.")
    measured = np.zeros((len(images), 2))
    with progress("measuring strokes", len(images)) as bar:
        for first in range(0, len(images), IMAGES_AT_A_TIME):
            part = slice(first, first + IMAGES_AT_A_TIME)
            measured[part] = _measure(images[part].astype(np.float64))
            bar.advance(len(measured[part]))
    return measured


class _Outline(NamedTuple):
    """Points where an outline crosses the sides of triangles: their image, x and y; and the images' A, P and chi."""

    image: np.ndarray
    x: np.ndarray
    y: np.ndarray
    area: np.ndarray
    perimeter: np.ndarray
    euler: np.ndarray


def _measure(images: np.ndarray) -> np.ndarray:
    peak = images.max((1, 2), initial=0)
    # Relative to half the maximum: positive inside, -1 everywhere without ink.
    level = np.where(peak > 0, peak / 2, 1.0)[:, None, None]
    height = np.pad(images, ((0, 0), (1, 1), (1, 1))) / level - 1
    outline = _trace_outline(height)
    return np.stack([_measure_thickness(outline), _measure_width(outline, np.maximum(images, 0))], axis=1)


def _measure_thickness(outline: _Outline) -> np.ndarray:
    area, perimeter, chi = outline.area, outline.perimeter, outline.euler
    root = np.sqrt(np.maximum(perimeter**2 - 4 * np.pi * chi * area, 0))
    # The same root without the quotient 0 / 0 of a ring: multiplied above and below by P + sqrt(…).
    return 4 * area / np.maximum(perimeter + root, np.finfo(float).tiny)


def _measure_width(outline: _Outline, ink: np.ndarray) -> np.ndarray:
    """Return the extent of the sheared outline [n]."""
    rows, columns = (np.arange(size, dtype=np.float64) for size in ink.shape[1:])
    mass = np.maximum(ink.sum((1, 2)), np.finfo(float).tiny)
    by_row, by_column = ink.sum(2), ink.sum(1)
    y, x = by_row @ rows / mass, by_column @ columns / mass
    spread = by_row @ rows**2 / mass - y**2
    together = np.einsum("nij,i,j->n", ink, rows, columns, optimize=True) / mass - x * y
    slant = np.where(spread > 1e-9, together / np.maximum(spread, 1e-9), 0.0)
    upright = outline.x - slant[outline.image] * (outline.y - y[outline.image])
    low, high = np.full(len(ink), np.inf), np.full(len(ink), -np.inf)
    np.minimum.at(low, outline.image, upright)
    np.maximum.at(high, outline.image, upright)
    return np.where(high > low, high - low, 0.0)


def _trace_outline(height: np.ndarray) -> _Outline:
    """Return the outline of {height > 0} in images with a margin of one pixel; coordinates are without the margin."""
    count = len(height)
    corners = np.stack([height[:, :-1, :-1], height[:, :-1, 1:], height[:, 1:, 1:], height[:, 1:, :-1]])
    middle = corners.mean(0)
    inside = corners > 0
    area = (inside.all(0) * 1.0).sum((1, 2))
    perimeter = np.zeros(count)
    mixed = np.nonzero(inside.any(0) & ~inside.all(0))
    image, top, left = mixed
    around, heart = corners[(slice(None), *mixed)], middle[mixed]
    across, down = np.array([-0.5, 0.5, 0.5, -0.5]), np.array([-0.5, -0.5, 0.5, 0.5])
    points: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for side in range(4):
        one, two = side, (side + 1) % 4
        values = np.stack([around[one], around[two], heart])
        places = np.array([[across[one], down[one]], [across[two], down[two]], [0.0, 0.0]])
        length, covered, crossings = _cut_triangles(values, places)
        area += np.bincount(image, covered, count)
        perimeter += np.bincount(image, length, count)
        for which, at in crossings:  # the margin moves the middle of a cell by -1 + 0.5
            points.append((image[which], left[which] - 0.5 + at[0], top[which] - 0.5 + at[1]))
    where, x, y = (np.concatenate(column) for column in zip(*points, strict=True))
    return _Outline(where, x, y, area, perimeter, _count_euler(height > 0, middle > 0))


def _cut_triangles(
    values: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Return outline length, area inside and crossing points of triangles of one form with heights [3, n].

    A single corner lies on its side of the outline, which cuts it off at the fractions s and r of two sides: its area
    is s r times that of the triangle.
    """
    inside = values > 0
    number = inside.sum(0)
    length, covered = np.zeros(values.shape[1]), np.where(number == 3, _TRIANGLE_AREA, 0.0)
    crossings = []
    for lone in range(3):
        first, second = (lone + 1) % 3, (lone + 2) % 3
        cut = np.flatnonzero((inside[lone] != inside[first]) & (inside[lone] != inside[second]))
        corner, one, two = values[lone, cut], values[first, cut], values[second, cut]
        s, r = corner / (corner - one), corner / (corner - two)
        ahead, aside = places[first] - places[lone], places[second] - places[lone]
        length[cut] = np.hypot(*(np.outer(ahead, s) - np.outer(aside, r)))
        cut_off = s * r * _TRIANGLE_AREA
        covered[cut] = np.where(inside[lone, cut], cut_off, _TRIANGLE_AREA - cut_off)
        for side, fraction in ((ahead, s), (aside, r)):
            crossings.append((cut, places[lone][:, None] + np.outer(side, fraction)))
    return length, covered, crossings


def _count_euler(pixels: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """Return points minus lines plus triangles whose ends are all inside [n]: pieces minus holes of the ink."""
    corners = [pixels[:, :-1, :-1], pixels[:, :-1, 1:], pixels[:, 1:, 1:], pixels[:, 1:, :-1]]
    euler = pixels.sum((1, 2)) + middles.sum((1, 2))
    euler = euler - (pixels[:, 1:] & pixels[:, :-1]).sum((1, 2)) - (pixels[:, :, 1:] & pixels[:, :, :-1]).sum((1, 2))
    for corner, following in zip(corners, corners[1:] + corners[:1], strict=True):
        spoke = corner & middles
        euler = euler - spoke.sum((1, 2)) + (spoke & following).sum((1, 2))
    return euler
