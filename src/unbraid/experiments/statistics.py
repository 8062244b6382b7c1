"""Statistics over seeds: values with 90% intervals by the bootstrap, and what experiments compute from means.

Results come as cells: one array [seed, score] for each setting. Seeds are drawn anew for each cell, since runs of one
seed share nothing but their first weights; the scores of a run stay together. A statistic takes cells whose arrays may
have leading axes [..., seed, score], so that all resamples are one call.

Percentiles of few seeds lie too close together: of three, the middle 90% of resampled means cover the truth in three of
five cases (hesterberg2015). Where they do, the ends are moved away from the value until they are as far apart as those
of Student's t interval, 2 t s, with the standard error s and the degrees of freedom of welch1947: each cell's part in
the variance is n / (n - 1) of what drawing this cell alone gives.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest, rankdata, t

from unbraid.report.tables import LEVEL, RESAMPLES

GRID_POINTS = 64
"""Places at which two trade-offs are compared."""

RESAMPLES_PER_CELL = 400
"""Resamples of one cell alone, for its share in a variance."""

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


def estimate(cells: Cells, statistic: Callable[[Cells], np.ndarray], *, smooth: bool = True) -> Estimate:
    """A statistic of cells, and the middle 90% of it over seeds drawn again, moved apart as few seeds ask for.

    What is not `smooth`, such as a median, keeps its percentiles. They are about right for differences of medians; of
    one median alone, of three seeds, they are the least and the largest, which lie around it in three cases of four.
    """
    value = float(statistic({key: rows[None] for key, rows in cells.items()})[0])
    if min(len(rows) for rows in cells.values()) < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(0)
    drawn = {key: _again(rows, RESAMPLES, rng) for key, rows in cells.items()}
    made = statistic(drawn)
    if np.isnan(made).mean() > 1 - LEVEL:  # the statistic has no meaning in too many resamples
        return Estimate(value, math.nan, math.nan)
    low, high = (float(end) for end in np.nanquantile(made, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    wanted = _student(cells, statistic, rng) if smooth else 0.0
    apart = wanted / (high - low) if 0 < high - low < wanted else 1.0
    return Estimate(value, min(low, value - apart * (value - low)), max(high, value + apart * (high - value)))


def estimate_share(values: np.ndarray) -> Estimate:
    """The share of true values, with wilson1927's interval: of no or of all seeds the bootstrap would be sure."""
    found = binomtest(int(values.sum()), len(values))
    low, high = found.proportion_ci(LEVEL, method="wilson")
    return Estimate(float(found.statistic), float(low), float(high))


def _again(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return rows[rng.integers(len(rows), size=(count, len(rows)))]


def _student(cells: Cells, statistic: Callable[[Cells], np.ndarray], rng: np.random.Generator) -> float:
    """Width of Student's interval, with (sum v_k)^2 / sum(v_k^2 / (n_k - 1)) degrees of freedom."""
    fixed = {key: np.broadcast_to(rows, (RESAMPLES_PER_CELL, *rows.shape)) for key, rows in cells.items()}
    drawn = [statistic({**fixed, key: _again(rows, RESAMPLES_PER_CELL, rng)}) for key, rows in cells.items()]
    seeds = np.array([len(rows) for rows in cells.values()])
    variance = np.array([np.nanvar(made) for made in drawn]) * seeds / (seeds - 1)
    if not variance.sum() > 0:
        return 0.0
    freedom = variance.sum() ** 2 / (variance**2 / (seeds - 1)).sum()
    return float(2 * t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(variance.sum()))


def cell_means(cells: Cells) -> np.ndarray:
    """Means over seeds [..., cell, score], in the order of the cells."""
    return np.stack([rows.mean(-2) for rows in cells.values()], -2)


def mean_difference(cells: Cells, first: Hashable, second: Hashable, score: int = 0) -> np.ndarray:
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


def gap_at_equal_x(first: np.ndarray, second: np.ndarray) -> np.ndarray:
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
    places = np.linspace(low, high, GRID_POINTS)
    return float((np.interp(places, *second.T) - np.interp(places, *first.T)).mean())
