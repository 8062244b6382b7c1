"""Statistics over seeds: values with 90% bootstrap intervals, and functions of means that experiments compare.

Results come as cells: one array [seed, score] for each setting. The bootstrap resamples the seeds of each cell
separately, since runs with one seed share only their first weights. The scores of a run stay together. A statistic
takes cells whose arrays may have leading axes [..., seed, score], so that one call computes all resamples.

Percentiles of few seeds lie too close together: with three seeds, the middle 90% of resampled means cover the truth in
three of five cases (hesterberg2015). In that case the ends move away from the value until they are as far apart as
those of Student's t interval, 2 t s, with the standard error s and the degrees of freedom of welch1947: a cell's part
in the variance is n / (n - 1) of the variance when only this cell is resampled.

An interval should depend on the runs, and not on the resamples that happen to be drawn. So these are balanced, each
seed as often as any other (davison1986), and of a cell's variance only the part that is not linear in its means is
estimated from them; the linear part is known.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest, norm, rankdata, t

from unbraid.report.tables import LEVEL, RESAMPLES, pearson

GRID_POINTS = 64

RESAMPLES_PER_CELL = 400

ROUNDING = 1e-9
"""Share of a statistic's variance up to which a deviation from a linear function of means is rounding."""

CHOICES = 20_000
"""Random choices of one seed per cell, which estimate the share above 0."""

SMALLEST_SHARE = 1e-15
"""Shares nearer to 0 or 1 would have infinite quantiles."""

MAX_FREEDOM = 4.0
"""Degrees of freedom that a widened interval counts at most: the far tails of a bootstrap are not to be trusted."""

Cells = Mapping[Any, np.ndarray]


class Chance(NamedTuple):
    """The share of repetitions in which a statistic is above 0, with its 90% interval.

    Intervals are symmetric on the scale of Normal quantiles.
    """

    value: float
    low: float
    high: float

    def move(self, deviations: float) -> "Chance":
        """Return the share if all repetitions were higher by so many standard deviations."""
        return Chance(*(float(ndtr(ndtri(share) + deviations)) for share in self))

    def stretch(self, factor: float) -> "Chance":
        """Return the share with an interval that reaches `factor` times as far from the value."""
        centre, *ends = (float(ndtri(np.clip(share, SMALLEST_SHARE, 1 - SMALLEST_SHARE))) for share in self)
        return Chance(self.value, *(float(ndtr(centre + factor * (end - centre))) for end in ends))


class Estimate(NamedTuple):
    """A value with its 90% interval; the ends are NaN if there are too few seeds.

    `freedom` are the degrees of freedom of the standard error behind the interval: by default those of a difference of
    two means over three seeds each. Of a statistic that is linear in means over seeds, `spread` is the standard
    deviation in repetitions with one seed of each setting, and `chance` the share of them that is above 0.
    """

    value: float
    low: float
    high: float
    freedom: float = 4.0
    spread: float = math.nan
    chance: Chance | None = None

    def move(self, by: float) -> "Estimate":
        """Return the estimate with value and interval moved."""
        chance = self.chance and self.chance.move(by / self.spread)
        return self._replace(value=self.value + by, low=self.low + by, high=self.high + by, chance=chance)

    def stretch(self, factor: float) -> "Estimate":
        """Return the estimate with an interval that reaches `factor` times as far from the value."""
        low, high = (self.value + factor * (end - self.value) for end in (self.low, self.high))
        return self._replace(low=low, high=high, chance=self.chance and self.chance.stretch(factor))

    def cover(self, low: float, high: float) -> "Estimate":
        """Return the estimate with an interval that contains another one, too."""
        return self._replace(low=min(self.low, low), high=max(self.high, high))

    def within(self, low: float, high: float) -> "Estimate":
        """Return the estimate with the ends of its interval inside the range of the quantity.

        Student's interval knows nothing of a correlation's or a share's range.
        """
        return self._replace(low=max(self.low, min(low, self.value)), high=min(self.high, max(high, self.value)))

    def as_record(self) -> dict[str, Any]:
        """Return a plain mapping for verdicts.json; what is unknown is None."""
        chance = None if self.chance is None else list(self.chance)
        numbers = {name: value for name, value in self._asdict().items() if name != "chance"}
        return {**{name: value if math.isfinite(value) else None for name, value in numbers.items()}, "chance": chance}

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "none"
        return f"{self.value:.3g}" if math.isnan(self.low) else f"{self.value:.3g} ({self.low:.3g}..{self.high:.3g})"


def estimate(cells: Cells, statistic: Callable[[Cells], np.ndarray], *, smooth: bool = True) -> Estimate:
    """Return a statistic of cells with the middle 90% of its resamples, widened if there are few seeds.

    A statistic that is not `smooth`, such as a median, keeps its percentiles. They are about right for differences of
    medians. For one median of three seeds they are the smallest and the largest value, which enclose it in three of
    four cases.
    """
    value = float(statistic({key: rows[None] for key, rows in cells.items()})[0])
    if min(len(rows) for rows in cells.values()) < 2 or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    rng = np.random.default_rng(0)
    resampled = {key: _resample(rows, RESAMPLES, rng) for key, rows in cells.items()}
    values = statistic(resampled)
    if np.isnan(values).mean() > 1 - LEVEL:  # the statistic has no meaning in too many resamples
        return Estimate(value, math.nan, math.nan)
    low, high = (float(end) for end in np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    width, freedom, slopes = 0.0, _count_freedom(cells), None
    if smooth:
        width, freedom, slopes = _find_student_width(cells, statistic, rng)
    stretch = width / (high - low) if 0 < high - low < width else 1.0
    ends = min(low, value - stretch * (value - low)), max(high, value + stretch * (high - value))
    spread, chance = estimate_single(cells, slopes, value, statistic, rng) if slopes else (math.nan, None)
    return Estimate(value, *ends, freedom, spread, chance)


def estimate_single(
    cells: Cells,
    slopes: Mapping[Any, np.ndarray],
    value: float,
    statistic: Callable[[Cells], np.ndarray],
    rng: np.random.Generator,
) -> tuple[float, Chance | None]:
    """Return the standard deviation of a statistic of one seed of each cell, and how often it is above 0.

    `slopes` are those of the statistic in the means of each cell. Both results are unknown if it is another function of
    single seeds, as one that chooses a setting by the other seeds is; the share, if it is 0 or 1. The share is a mean
    over all choices of one seed per cell, estimated from some of them. Its variance is the sum over cells of that of
    h_k(i) / n_k, where h_k(i) is the share of choices with seed i of cell k that are above 0 (hoeffding1948).
    """
    chosen = {key: rng.integers(len(rows), size=CHOICES) for key, rows in cells.items()}
    single = statistic({key: rows[chosen[key], None] for key, rows in cells.items()})
    linear = value + sum((rows[chosen[key]] - rows.mean(0)) @ slopes[key] for key, rows in cells.items())
    spread = math.sqrt(sum(slope @ _covariance(cells[key], ddof=1) @ slope for key, slope in slopes.items()))
    if not np.allclose(single, linear, rtol=0, atol=1e-6 * spread):
        return math.nan, None
    return spread, _estimate_share_above(cells, chosen, np.where(single == 0, 0.5, single > 0))


def _estimate_share_above(cells: Cells, chosen: Mapping[Any, np.ndarray], above: np.ndarray) -> Chance | None:
    """Return the share of choices above 0, with an interval over seeds."""
    share = float(above.mean())
    parts, seeds = [], np.array([len(rows) for rows in cells.values()])
    for key, rows in cells.items():
        counts = np.bincount(chosen[key], minlength=len(rows))
        parts.append(np.var(np.bincount(chosen[key], above, len(rows)) / counts, ddof=1) / len(rows))
    variance = np.array(parts)
    if not (0 < share < 1 and variance.sum() > 0):
        return None
    freedom = float(variance.sum() ** 2 / (variance**2 / (seeds - 1)).sum())
    centre = float(ndtri(share))
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance.sum()) / float(norm.pdf(centre))
    return Chance(share, float(ndtr(centre - half)), float(ndtr(centre + half)))


def find_fisher_interval(correlation: float, count: int) -> tuple[float, float]:
    """Return the 90% interval of a correlation over `count` pairs, as for Normal numbers (fisher1921)."""
    if count < 4 or abs(correlation) >= 1:
        return correlation, correlation
    centre, half = math.atanh(correlation), float(ndtri((1 + LEVEL) / 2)) / math.sqrt(count - 3)
    return math.tanh(centre - half), math.tanh(centre + half)


def find_jackknife_interval(rows: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Return Student's 90% interval of a statistic of rows [..., seed, score] with the jackknife's standard error.

    That error is too large in the mean (efron1981), where the bootstrap's is too small, as for standard deviations.
    """
    seeds, value = len(rows), float(statistic(rows[None])[0])
    if seeds < 3:
        return value, value
    left = statistic(np.stack([np.delete(rows, seed, 0) for seed in range(seeds)]))
    error = math.sqrt((seeds - 1) * np.var(left))
    half = float(t.ppf((1 + LEVEL) / 2, seeds - 1)) * error
    return value - half, value + half


def estimate_by_exchange(
    cells: Cells, statistic: Callable[[Cells], np.ndarray], first: Hashable, second: Hashable
) -> Estimate:
    """Return a difference of two series with an interval from exchanging their runs, for maxima and the like.

    Keys of cells are (series, setting). A bootstrap of a maximum is too sure of itself. Here runs of both series are
    exchanged at random inside each setting; the interval's half width is exceeded by a tenth of the differences.
    """
    value = float(statistic({key: rows[None] for key, rows in cells.items()})[0])
    rng, exchanged = np.random.default_rng(0), {}
    for setting in dict.fromkeys(at for _, at in cells):
        both = [cells[name, setting] for name in (first, second)]
        pooled = np.concatenate(both)
        order = rng.permuted(np.tile(np.arange(len(pooled)), (RESAMPLES, 1)), axis=1)
        exchanged[first, setting] = pooled[order[:, : len(both[0])]]
        exchanged[second, setting] = pooled[order[:, len(both[0]) :]]
    half = float(np.quantile(np.abs(statistic(exchanged)), LEVEL, method="higher"))
    return Estimate(value, value - half, value + half)


def widen_for(count: int, found: Estimate, max_freedom: float = MAX_FREEDOM) -> Estimate:
    """Return the interval of one of `count` estimates such that all of them together have the level of one."""
    tail, freedom = (1 - LEVEL) / 2, min(found.freedom, max_freedom)
    factor = float(t.ppf(1 - tail / count, freedom) / t.ppf(1 - tail, freedom)) if count > 1 else 1.0
    return found.stretch(factor)


def foresee(found: Estimate, seeds: int, more: int, looks: int, later_looks: int | None = None) -> Estimate:
    """Return what an interval of the k-th look at `seeds` seeds would be with `more` (or fewer), at the next look.

    With `later_looks` it is that of another look.
    Its standard error follows from the longer side, because the other one may end at the range of its score.
    """
    tail, freedom = (1 - LEVEL) / 2, max(found.freedom, seeds - 1)
    later = freedom * (more - 1) / max(seeds - 1, 1)
    now = max(found.high - found.value, found.value - found.low)
    if not now > 0:
        return found
    error = now / float(t.ppf(1 - tail / looks, freedom))
    error_later = error * math.sqrt(seeds / more)
    if found.spread > 0:  # cells may have different numbers of seeds
        of_equal_cells = found.spread / math.sqrt(more)
        error_later = min(error, of_equal_cells) if more >= seeds else of_equal_cells
    half = float(t.ppf(1 - tail / (later_looks or looks + 1), later)) * error_later
    chance = found.chance and found.chance.stretch(half / now)
    return Estimate(found.value, found.value - half, found.value + half, later, found.spread, chance)


def choose_held_out(scores: np.ndarray) -> np.ndarray:
    """Return scores [..., seed] at the setting that the other seeds find best, from scores [..., setting, seed].

    The best of several settings is above the others by chance, if the same runs choose and judge it.
    """
    best = (scores.sum(-1, keepdims=True) - scores).argmax(-2)[..., None, :]
    return np.take_along_axis(scores, best, -2)[..., 0, :]


def align_seeds(cells: Cells, score: int = 0) -> np.ndarray:
    """Return one score [..., cell, seed], with as many seeds as the cell that has the fewest.

    Runs of several cells are put side by side in order; those with one seed share only their first weights.
    """
    seeds = min(rows.shape[-2] for rows in cells.values())
    return np.stack([rows[..., :seeds, score] for rows in cells.values()], -2)


def estimate_share(values: np.ndarray) -> Estimate:
    """Return the share of true values with wilson1927's interval.

    If no or every value is true, a bootstrap interval would have no width.
    """
    found = binomtest(int(values.sum()), len(values))
    low, high = found.proportion_ci(LEVEL, method="wilson")
    return Estimate(float(found.statistic), float(low), float(high))


def _resample(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` resamples [count, seed, score], which together contain each seed equally often."""
    return rows[rng.permutation(np.repeat(np.arange(len(rows)), count)).reshape(count, len(rows))]


def _count_freedom(cells: Cells) -> float:
    return float(sum(len(rows) - 1 for rows in cells.values()))


def _find_student_width(
    cells: Cells, statistic: Callable[[Cells], np.ndarray], rng: np.random.Generator
) -> tuple[float, float, dict[Any, np.ndarray] | None]:
    """Return the width of Student's interval, and its (sum v_k)^2 / sum(v_k^2 / (n_k - 1)) degrees of freedom.

    The third result are the slopes of the statistic in the means of each cell; None if it is not linear in them.
    """
    fixed = {key: np.broadcast_to(rows, (RESAMPLES_PER_CELL, *rows.shape)) for key, rows in cells.items()}
    parts, slopes = [], {}
    for key, rows in cells.items():
        resampled = _resample(rows, RESAMPLES_PER_CELL, rng)
        *found, slopes[key] = _find_variance(rows, resampled, statistic({**fixed, key: resampled}))
        parts.append(found)
    seeds = np.array([len(rows) for rows in cells.values()])
    linear, rest = np.array(parts).T
    variance = (linear + rest) * seeds / (seeds - 1)
    if not variance.sum() > 0:
        return 0.0, _count_freedom(cells), None
    freedom = float(variance.sum() ** 2 / (variance**2 / (seeds - 1)).sum())
    width = float(2 * t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(variance.sum()))
    return width, freedom, slopes if rest.sum() < ROUNDING * linear.sum() else None


def _find_variance(rows: np.ndarray, resampled: np.ndarray, values: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the variance of a statistic over all resamples of one cell in two parts, from its values for some of them.

    What a fit by the means m of the cell's scores explains has the variance b' C b / n, with the coefficients b and the
    covariance C of the scores over seeds; only that of the rest is estimated. The third result is b.
    """
    known = ~np.isnan(values)
    means, values = resampled[known].mean(1) - rows.mean(0), values[known] - values[known].mean()
    slopes = np.linalg.lstsq(means, values, rcond=None)[0]
    explained = slopes @ _covariance(rows, ddof=0) @ slopes / len(rows)
    return float(explained), float(np.var(values - means @ slopes)), slopes


def _covariance(rows: np.ndarray, ddof: int) -> np.ndarray:
    """Return the covariance of scores over seeds [score, score]."""
    return np.atleast_2d(np.cov(rows, rowvar=False, ddof=ddof))


def cell_means(cells: Cells) -> np.ndarray:
    """Return means over seeds [..., cell, score], in the order of the cells."""
    return np.stack([rows.mean(-2) for rows in cells.values()], -2)


def mean_difference(cells: Cells, first: Hashable, second: Hashable, score: int = 0) -> np.ndarray:
    """Return the mean of the second cell minus the mean of the first."""
    return cells[second][..., score].mean(-1) - cells[first][..., score].mean(-1)


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the correlation of ranks over the last axis."""
    return pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def gap_at_equal_x(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the mean height of the second curve [..., points, (x, y)] above the first, over the x that both reach.

    Curves are linear between their points. The result is NaN if they share no x.
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
