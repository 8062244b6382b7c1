"""95% intervals of scores, and scores that are means."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.metrics.score import Score

Range = tuple[float, float]
REALS = (-math.inf, math.inf)

NORMAL_95 = 1.96
"""Standard errors on either side of the mean that hold 95% of a Normal distribution."""


def resampling_interval(value: float, resampled: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Return value -+ 1.96 standard deviations of the resampled values, within `bounds`; None for fewer than two.

    Resampled rows repeat, which raises every mutual information and every fit a little. Percentiles of the resampled
    values need not contain the value, but their spread is right.
    """
    if len(resampled) < 2:
        return None
    return _clip_interval(value, NORMAL_95 * float(np.std(resampled, ddof=1)), bounds)


def mean_interval(values: Sequence[float] | np.ndarray, bounds: Range = REALS) -> Range | None:
    """Return the interval of the mean of independent values, such as an accuracy over test rows."""
    if len(values) < 2:
        return None
    error = NORMAL_95 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return _clip_interval(float(np.mean(values)), error, bounds)


def _clip_interval(value: float, error: float, bounds: Range) -> Range:
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
