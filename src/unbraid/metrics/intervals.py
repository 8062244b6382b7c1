"""95% intervals of scores, and scores that are means."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.metrics.score import Score

Range = tuple[float, float]
REALS = (-math.inf, math.inf)

NORMAL_95 = 1.96
"""Standard errors on either side of a value that hold 95% of a Normal distribution."""


def resampling_interval(value: float, resampled: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """The value -+ 1.96 standard deviations of what resampled rows give, cut off at the score's bounds.

    Resampled rows repeat, which lifts every mutual information and every fit a little, so percentiles of the resampled
    values need not contain the value; their spread is right. None where fewer than two were drawn.
    """
    if len(resampled) < 2:
        return None
    error = NORMAL_95 * float(np.std(resampled, ddof=1))
    return min(value, max(bounds[0], value - error)), max(value, min(bounds[1], value + error))


def mean_interval(values: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Interval of the mean of independent values, as an accuracy is the mean of right and wrong."""
    if len(values) < 2:
        return None
    value, error = float(np.mean(values)), NORMAL_95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return min(value, max(bounds[0], value - error)), max(value, min(bounds[1], value + error))


def score_mean(
    metric: str,
    protocol: str,
    values: np.ndarray,
    part: str | None = None,
    bounds: Range = REALS,
    details: Mapping[str, Any] | None = None,
) -> Score:
    """Return the mean of independent values as a score, with its interval."""
    interval = mean_interval(values, bounds)
    return Score(metric, protocol, float(values.mean()), len(values), interval, part, details=details or {})
