"""95% intervals of scores, and what each of them is for.

A score states in `covers` what its interval promises to contain in 95 of 100 cases:

| `covers`                        | the interval contains                                                              |
|---------------------------------|------------------------------------------------------------------------------------|
| `spread at n rows`              | the mean of the same procedure over other draws of n rows; its bias stays          |
| `value over all rows`           | the value that more and more rows would give                                       |
| `median over all partners`      | the median over more models like these (`udr`)                                     |
| `value over all draws`          | the value that more and more draws from the same rows would give                   |
| `exact`                         | the value, because nothing about it is random                                      |
| `none: …`                       | nothing, and why                                                                   |

The spread of a whole procedure (bins, fits, neighbours) comes from pairs of disjoint halves of the rows. The halves
of a pair are independent, so the squared difference of their scores is on average twice the variance at n / 2 rows, and
four times that at n rows if a variance falls with 1/n. This also holds for maxima and neighbours. Where a
predictor weighs a penalty against the sum of all rows' losses (C), each row of a half counts twice: otherwise a half
would be fitted to another problem. What halves without
their partners would tell is too much there: the spread of scores of halves is right for means only. A bootstrap repeats
rows, which raises every mutual information and breaks nearest neighbours. `benchmarks/coverage.py` measures how often
each interval keeps its promise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.metrics.score import Score
from unbraid.threads import one_thread

Range = tuple[float, float]
REALS = (-math.inf, math.inf)

NORMAL_95 = 1.96
"""Standard errors on either side of the mean that hold 95% of a Normal distribution."""

ALL_ROWS = "value over all rows"
ALL_DRAWS = "value over all draws"
EXACT = "exact"
FIT_ONCE = "the predictor is fitted once; resamples=10 refits it on halves of the rows"


def spread_at(rows: int) -> str:
    """Return the promise of an interval for the mean of a procedure over draws of that many rows."""
    return f"spread at {rows:,} rows"


def no_interval(why: str) -> str:
    """Return what a score without an interval says in its place."""
    return f"none: {why}"


def resampling_interval(value: float, resampled: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Return value -+ t standard deviations of the resampled values, within `bounds`; None for fewer than two.

    t is Student's quantile for that many resamples. The spread of resampled values is right, but they may lie above the
    value or below it, so their percentiles need not contain it.
    """
    if len(resampled) < 2:
        return None
    return _clip_interval(value, student_95(len(resampled)) * float(np.std(resampled, ddof=1)), bounds)


def mean_interval(values: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Return the interval of the mean of independent values, by Student's t."""
    if len(values) < 2:
        return None
    numbers = np.asarray(values, dtype=np.float64)
    error = student_95(len(numbers)) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return _clip_interval(float(numbers.mean()), error, bounds)


def share_interval(share: float, count: float) -> Range:
    """Return the interval of a share of `count` independent cases (wilson1927); (1, 1) is never its value."""
    z2 = NORMAL_95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach))


def mean_share_interval(shares: Sequence[float] | np.ndarray) -> Range | None:
    """Return the interval of the mean of independent numbers from 0 to 1, such as each row's accuracy over factors.

    It is that of a share with the variance of the numbers, so that it has a width even if all of them are 1.
    """
    numbers = np.asarray(shares, dtype=np.float64)
    if len(numbers) < 2:
        return None
    mean = float(numbers.mean())
    widest, variance = mean * (1 - mean), float(numbers.var())
    return share_interval(mean, len(numbers) * (widest / variance if variance > 0 else 1.0))


class Spread(NamedTuple):
    """The variance of a score over draws of rows, and the degrees of freedom with which it was estimated."""

    variance: float
    degrees: float

    @classmethod
    def of_halves(cls, halves: Sequence[float] | np.ndarray) -> "Spread | None":
        """Return the spread from the values of pairs of disjoint halves, in the order of `measure_halves`."""
        if len(halves) < 2:
            return None
        pairs = np.asarray(halves, dtype=np.float64)[: len(halves) // 2 * 2].reshape(-1, 2)
        return cls(float(np.square(pairs[:, 0] - pairs[:, 1]).mean()) / 4, len(pairs))

    @classmethod
    def of_shrinking(
        cls, halves: Sequence[float] | np.ndarray, quarters: Sequence[float] | np.ndarray
    ) -> "Spread | None":
        """Return the spread of a procedure whose variance may fall more slowly than 1/n, from halves and their halves.

        The variance falls from n / 2 to n rows as it does from n / 4 to n / 2 rows: by a factor between 1/2, as for
        means, and 1.
        """
        spread, of_less = cls.of_halves(halves), cls.of_halves(quarters)
        if spread is None or of_less is None or of_less.variance == 0:
            return spread
        slower = min(2.0, max(1.0, 2 * spread.variance / of_less.variance))
        return cls(spread.variance * slower, spread.degrees)

    @classmethod
    def of_refits(cls, rows: np.ndarray, refits: np.ndarray, share: float) -> "Spread | None":
        """Return the spread of a mean over test rows, such as an accuracy, of a predictor that is fitted.

        The mean of `rows` [test] is the score. `refits` [fits, test] are the same numbers of pairs of predictors, which
        were fitted to disjoint training rows, `share` of the number of the score. The test rows of the score know their
        own part of the variance. The means of a pair differ by what the fit does, and by the chance of the test rows,
        which is subtracted, as in an analysis of variance. Degrees of freedom: satterthwaite1946.
        """
        if len(refits) < 2:
            return None
        gaps, count = refits[: len(refits) // 2 * 2 : 2] - refits[1::2], len(rows)
        of_test, seen = float(rows.var()) / count, float(np.square(gaps.mean(1)).mean()) / 2
        variance = of_test + share * max(0.0, seen - float(gaps.var(1).mean()) / 2 / count)
        return cls(variance, min(count, len(gaps) * (variance / (share * seen)) ** 2) if seen > 0 else count)

    def interval(self, value: float, bounds: Range = REALS) -> Range:
        """Return value -+ t standard deviations, within `bounds`."""
        return _clip_interval(value, student_95(1 + self.degrees) * math.sqrt(self.variance), bounds)

    def share_interval(self, share: float, count: int) -> Range:
        """Return the interval of a share, such as an accuracy.

        It has the form of wilson1927 with the number of cases that would vary so much. If nothing varies, as for an
        accuracy of 1, that is `count`, the number of cases which there were.
        """
        variance, widest = self.variance * (student_95(1 + self.degrees) / NORMAL_95) ** 2, share * (1 - share)
        return share_interval(share, widest / variance if variance > 0 and widest > 0 else count)


def halves_interval(value: float, halves: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Return the interval of a value with the spread of pairs of halves; None without a pair."""
    spread = Spread.of_halves(halves)
    return None if spread is None else spread.interval(value, bounds)


def halves_share_interval(share: float, halves: Sequence[float] | np.ndarray, count: int) -> Range | None:
    """Return the interval of a share of `count` cases with the spread of pairs of halves; None without a pair."""
    spread = Spread.of_halves(halves)
    return None if spread is None else spread.share_interval(share, count)


def median_interval(values: Sequence[float] | np.ndarray) -> Range | None:
    """Return the narrowest pair of order statistics that holds the median of their distribution in 95% of cases."""
    from scipy.stats import binom

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    outside = int(binom.ppf(0.025, len(ordered), 0.5))  # values on each side that may be left out
    if len(ordered) < 6:  # all of 5 values hold it in 94%
        return None
    return float(ordered[outside - 1]), float(ordered[-outside])


def student_95(count: float) -> float:
    """Return the reach of a 95% interval in standard deviations that were estimated from `count` values."""
    from scipy.special import stdtrit  # scipy.stats takes almost a second to import

    return float(stdtrit(count - 1, 0.975))


def draw_halves(sets: Sequence[int], count: int, rng: np.random.Generator) -> list[list[np.ndarray]]:
    """Draw `count` random halves of several sets of rows, such as training and test rows, in pairs of disjoint ones."""
    draws = []
    for _ in range(count // 2):
        orders = [(rng.permutation(size), max(1, size // 2)) for size in sets]
        draws += [[order[:half] for order, half in orders], [order[-half:] for order, half in orders]]
    return draws


def halve_again(halves: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Return both halves of each half, pair by pair; the rows of a half are in random order."""
    quarters = []
    for half in halves:
        middles = [max(1, len(rows) // 2) for rows in half]
        quarters.append([rows[:middle] for rows, middle in zip(half, middles, strict=True)])
        quarters.append([rows[-middle:] for rows, middle in zip(half, middles, strict=True)])
    return quarters


def measure_halves(
    measure: Callable[..., Any], sets: Sequence[int], count: int, rng: np.random.Generator, threads: bool = True
) -> list[Any]:
    """Return `measure(*rows)` for random halves of sets of rows, pair by pair, in as many threads as torch uses.

    A procedure that splits its rows has one set for each part, so that every part is halved. One that has threads or a
    progress bar of its own takes no `threads`.
    """
    return measure_draws(measure, draw_halves(sets, count, rng), threads)


def measure_draws(
    measure: Callable[..., Any], draws: Sequence[Sequence[np.ndarray]], threads: bool = True
) -> list[Any]:
    """Return `measure(*rows)` for each draw of rows, in as many threads as torch uses; a single draw has them all."""
    if not threads or len(draws) < 2:
        return [measure(*rows) for rows in draws]
    workers = torch.get_num_threads()
    with one_thread(), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda rows: measure(*rows), draws))


def _clip_interval(value: float, error: float, bounds: Range) -> Range:
    return min(value, max(bounds[0], value - error)), max(value, min(bounds[1], value + error))


def score_mean(
    metric: str,
    protocol: str,
    values: np.ndarray,
    part: str | None = None,
    bounds: Range = REALS,
    details: Mapping[str, Any] | None = None,
    covers: str = ALL_ROWS,
) -> Score:
    """Return the mean of independent values as a score, with its interval.

    Values from 0 to 1 are shares: their interval has a width even if all are equal.
    """
    interval = mean_share_interval(values) if bounds == (0.0, 1.0) else mean_interval(values, bounds)
    return Score(
        metric, protocol, float(values.mean()), len(values), interval, part, details=details or {}, covers=covers
    )
