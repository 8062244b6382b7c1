r"""The kernel inception distance (binkowski2018): the squared maximum mean discrepancy under a cubic kernel,

    KID = E k(x, x') + E k(y, y') - 2 E k(x, y),    k(x, y) = (x . y / d + 1)^3,

over features of distinct originals x, x' and distinct generated observations y, y'. The estimate leaves out pairs of a
row with itself, so it has no bias: it may be negative, and it can be compared between different numbers of rows.

The paper takes the mean over random subsets (`subsets=100, size=1000`). The mean over all subsets is the estimate from
all rows, which is the default here: nothing is random, and its standard error follows from each row's share (the
first-order variance of a U-statistic, hoeffding1948). Pairs of a reconstruction and its original are left out, too.

A row's share is a cubic polynomial of its features, so the variance of the shares is finite only if the sixth moments
of the features are. If the tails fall more slowly, the estimate need not settle as rows are added, and there is no
interval: for noise of Student's t distribution with 3 degrees of freedom (10 features), the quartiles of values over
draws are as far apart with 50,000 rows as with 500.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import read_feature_pair, split_rows, take_rows
from unbraid.metrics.generative.features.feature_sets import CLASSIFIER, EFFICIENTNET, INCEPTION, compare_features
from unbraid.metrics.generative.features.tails import find_tail_index, has_heavy_tails
from unbraid.metrics.intervals import ALL_ROWS, NORMAL_95, no_interval
from unbraid.progress import track

DEGREE = 3
"""Of the kernel, a polynomial."""

FACTS: dict[str, Any] = {"reference": "binkowski2018"}


@metric("kid/efficientnet-lite0", **FACTS, **EFFICIENTNET)
def efficientnet(
    evaluation: Evaluation, *, samples: int = 2_000, size: int = 224, subsets: int | None = None
) -> list[Score]:
    """Kernel distance of reconstructions and of prior samples from originals, in EfficientNet-Lite0 features."""
    return _compare(evaluation, "efficientnet-lite0", samples, subsets, size=size)


@metric("kid/inception", **FACTS, **INCEPTION)
def inception(
    evaluation: Evaluation, *, samples: int = 10_000, weights: str | None = None, subsets: int | None = None
) -> list[Score]:
    """Kernel inception distance of reconstructions and of prior samples from originals."""
    return _compare(evaluation, "inception", samples, subsets, weights=weights)


@metric("kid/classifier", **FACTS, **CLASSIFIER)
def classifier(
    evaluation: Evaluation, *, samples: int = 5_000, steps: int | None = None, subsets: int | None = None
) -> list[Score]:
    """Kernel distance of reconstructions and of prior samples from originals, in features of a label classifier."""
    return _compare(evaluation, "classifier", samples, subsets, steps=steps)


def kid(
    features_a: Any,
    features_b: Any,
    *,
    network: str = "given",
    paired: bool = False,
    subsets: int | None = None,
    size: int = 1_000,
    seed: int = 0,
) -> Score:
    """Return the unbiased squared kernel distance of two sets of features [rows, features].

    `network` names the features. `paired`: row i of one set belongs to row i of the other. With `subsets` the value is
    the mean over that many random subsets of `size` rows, and the interval comes from their spread if a subset has at
    most half of the rows. CUDA tensors stay on their device.
    """
    a, b = read_feature_pair(features_a, features_b, paired=paired)
    details: dict[str, Any] = {"features": a.shape[1], "sizes": [len(a), len(b)], "paired": paired}
    why = "subsets of more than half of the rows are too alike"
    interval: tuple[float, float] | None
    if subsets is None:
        value, error = _discrepancy(a, b, paired)
        interval = (value - NORMAL_95 * error, value + NORMAL_95 * error)
    else:
        values = _subset_values(a, b, paired, subsets, size, np.random.default_rng(seed))
        value, interval = float(values.mean()), _interval(values, min(size, len(a), len(b)), min(len(a), len(b)))
        details |= {"subsets": subsets, "size": min(size, len(a), len(b)), "deviation": float(values.std())}
    if not math.isfinite(value):
        raise DataError("The features are too large for a cubic kernel in float64.")
    if interval and any(_has_infinite_variance(x, np.random.default_rng(seed)) for x in (a, b)):
        interval, why = None, "a few rows far from all others decide the mean of a cubic kernel"
    covers = ALL_ROWS if interval else no_interval(why)
    return Score("kid", network, value, min(len(a), len(b)), interval, details=details, covers=covers)


def _compare(evaluation: Evaluation, network: str, samples: int, subsets: int | None, **settings: Any) -> list[Score]:
    measure = partial(kid, subsets=subsets, seed=evaluation.seed)
    return compare_features(evaluation, network, samples, measure, **settings)


def _has_infinite_variance(x: Tensor, rng: np.random.Generator) -> bool:
    """Return whether one row decides the variance of cubic terms, and the tails are those of infinite sixth moments."""
    return find_tail_index(x) <= 2 * DEGREE and has_heavy_tails(x, DEGREE, rng)


def _discrepancy(a: Tensor, b: Tensor, paired: bool) -> tuple[float, float]:
    """Return the estimate over all pairs of distinct rows, and its standard error."""
    within_a, within_b = _mean_kernels(a, a, True)[0], _mean_kernels(b, b, True)[0]
    across_a, across_b = _mean_kernels(a, b, paired)
    part_a, part_b = within_a - across_a, within_b - across_b  # each row's share; their means sum to the estimate
    value = float(part_a.mean() + part_b.mean())
    if paired:
        return value, 2 * float((part_a + part_b).std()) / math.sqrt(len(a))
    return value, 2 * math.sqrt(float(part_a.var()) / len(a) + float(part_b.var()) / len(b))


def _mean_kernels(x: Tensor, y: Tensor, skip_diagonal: bool) -> tuple[Tensor, Tensor]:
    """Return the mean of k(x_i, y_j) over j for each i, and over i for each j, with or without the pairs i = j."""
    of_x, of_y = [], torch.zeros_like(y[:, 0])
    for start, rows in split_rows(x, y):
        root = (rows @ y.T).div_(x.shape[1]).add_(1)
        kernel = root.square().mul_(root)
        if skip_diagonal:
            kernel.diagonal(start).zero_()
        of_x.append(kernel.sum(1))
        of_y += kernel.sum(0)
    return torch.cat(of_x) / (len(y) - skip_diagonal), of_y / (len(x) - skip_diagonal)


def _subset_values(a: Tensor, b: Tensor, paired: bool, count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    check_at_least(1, subsets=count)
    check_at_least(2, size=size)
    size, values = min(size, len(a), len(b)), []
    for _ in track("subsets", range(count)):
        rows = rng.choice(len(a), size, replace=False)
        others = rows if paired else rng.choice(len(b), size, replace=False)
        values.append(_discrepancy(take_rows(a, rows), take_rows(b, others), paired)[0])
    return np.array(values)


def _interval(values: np.ndarray, size: int, rows: int) -> tuple[float, float] | None:
    """Return the interval from the spread of subsets, or None if subsets overlap so much that it is too narrow."""
    if len(values) < 2 or 2 * size > rows:
        return None
    value, error = float(values.mean()), NORMAL_95 * float(values.std(ddof=1)) * math.sqrt(size / rows)
    return value - error, value + error
