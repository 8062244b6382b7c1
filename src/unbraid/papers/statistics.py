"""Statistics over seeds: values with 90% intervals by the bootstrap, and what experiments compute from means.

Results come as cells: one array [seed, score] for each setting. Seeds are drawn anew for each cell, since runs of one
seed share nothing but their first weights; the scores of a run stay together. A statistic takes cells whose arrays may
have leading axes [..., seed, score], so that all resamples are one call.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from unbraid.report.tables import LEVEL, RESAMPLES

GRID = 64
"""Places at which two trade-offs are compared."""

Cells = Mapping[Any, np.ndarray]


class Estimate(NamedTuple):
    """A value with its 90% interval; the ends are NaN where there are too few seeds for one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "none"
        return f"{self.value:.3g}" if math.isnan(self.low) else f"{self.value:.3g} ({self.low:.3g}..{self.high:.3g})"


def estimate(cells: Cells, statistic: Callable[[Cells], np.ndarray]) -> Estimate:
    """A statistic of cells, and the middle 90% of it over seeds drawn again with replacement."""
    value = float(statistic({key: rows[None] for key, rows in cells.items()})[0])
    if min(len(rows) for rows in cells.values()) < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(0)
    drawn = {key: rows[rng.integers(len(rows), size=(RESAMPLES, len(rows)))] for key, rows in cells.items()}
    made = statistic(drawn)
    if np.isnan(made).mean() > 1 - LEVEL:  # the statistic has no meaning in too many resamples
        return Estimate(value, math.nan, math.nan)
    low, high = np.nanquantile(made, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def means(cells: Cells) -> np.ndarray:
    """Means over seeds [..., cell, score], in the order of the cells."""
    return np.stack([rows.mean(-2) for rows in cells.values()], -2)


def difference(cells: Cells, first: Hashable, second: Hashable, score: int = 0) -> np.ndarray:
    """Mean of the second cell minus mean of the first."""
    return cells[second][..., score].mean(-1) - cells[first][..., score].mean(-1)


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation over the last axis; NaN where one of both does not vary."""
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    norm = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norm > 0, (x * y).sum(-1) / norm, np.nan)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation of ranks over the last axis."""
    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def gap_at_equal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How much higher one curve lies than another [..., points, (x, y)], on average over the x that both reach.

    Between its points a curve is a straight line; NaN where the curves share no x.
    """
    shape = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    pairs = [
        np.broadcast_to(curve, (*shape, *curve.shape[-2:])).reshape(-1, *curve.shape[-2:]) for curve in (first, second)
    ]
    gaps = [_gap(a[a[:, 0].argsort()], b[b[:, 0].argsort()]) for a, b in zip(*pairs, strict=True)]
    return np.array(gaps).reshape(shape)


def _gap(first: np.ndarray, second: np.ndarray) -> float:
    low, high = max(first[0, 0], second[0, 0]), min(first[-1, 0], second[-1, 0])
    if not low < high:
        return math.nan
    places = np.linspace(low, high, GRID)
    return float((np.interp(places, *second.T) - np.interp(places, *first.T)).mean())
