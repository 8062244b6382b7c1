r"""Improved precision and recall (kynkaanniemi2019): are generated images realistic, and do they cover the real ones?

A set's region is the union of balls around its features; each ball reaches to the k-th nearest other feature of the set
(k = 3). Precision is the share of generated features in the region of the real ones, recall the share of real features
in the region of the generated ones. Both depend on the number of rows: compare equal numbers only.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import read_feature_pair, split_rows, take_rows
from unbraid.metrics.generative.features.feature_sets import CLASSIFIER, EFFICIENTNET, INCEPTION, compare_features
from unbraid.metrics.intervals import halves_share_interval, measure_halves, no_interval, spread_at

SAME = 1e-12
"""Squared distance, relative to the sum of squared lengths, below which two features differ by rounding only."""

FACTS: dict[str, Any] = {"reference": "kynkaanniemi2019"}


@metric("precision-recall/efficientnet-lite0", **FACTS, **EFFICIENTNET)
def efficientnet(evaluation: Evaluation, *, samples: int = 2_000, size: int = 224, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in EfficientNet-Lite0 features."""
    return _compare(evaluation, "efficientnet-lite0", samples, k, size=size)


@metric("precision-recall/inception", **FACTS, **INCEPTION)
def inception(evaluation: Evaluation, *, samples: int = 10_000, weights: str | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in Inception features."""
    return _compare(evaluation, "inception", samples, k, weights=weights)


@metric("precision-recall/classifier", bounds=(0.0, 1.0), **FACTS, **CLASSIFIER)
def classifier(evaluation: Evaluation, *, samples: int = 5_000, steps: int | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in features of a label classifier."""
    return _compare(evaluation, "classifier", samples, k, steps=steps)


def precision_recall(
    real: Any, made: Any, *, k: int = 3, network: str = "given", resamples: int = 20, seed: int = 0
) -> list[Score]:
    """Return precision and recall of generated features [rows, features] against real ones.

    `network` names the features. The 95% intervals are for means over draws of as many rows, from random halves of both
    sets with regions of their own. CUDA tensors stay on their device.
    """
    truth, other = read_feature_pair(real, made, ("real", "made"))
    check_at_least(1, k=k)
    if min(len(truth), len(other)) <= k:
        raise DataError(f"{k} nearest neighbours need more than {k} rows, not {min(len(truth), len(other))}.")
    middle = truth.mean(0)
    truth, other = truth - middle, other - middle  # equal distances with less rounding error
    details = {"features": truth.shape[1], "sizes": [len(truth), len(other)], "k": k}

    def measure_half(of_truth: np.ndarray, of_other: np.ndarray) -> tuple[float, float]:
        return _measure(take_rows(truth, of_truth), take_rows(other, of_other), k)

    enough = min(len(truth), len(other)) >= 4 * k
    count, rng = resamples if enough else 0, np.random.default_rng(seed)
    halves = measure_halves(measure_half, [len(truth), len(other)], count, rng)
    scores = []
    for part, value, drawn in zip(
        ("precision", "recall"), _measure(truth, other, k), np.array(halves).reshape(-1, 2).T, strict=True
    ):
        counted = other if part == "precision" else truth
        interval = halves_share_interval(value, drawn, len(counted))
        covers = spread_at(len(counted)) if interval else no_interval("it needs more rows or resamples")
        scores.append(
            Score("precision-recall", network, value, len(counted), interval, part, details=details, covers=covers)
        )
    return scores


def _measure(truth: Tensor, other: Tensor, k: int) -> tuple[float, float]:
    """Return precision and recall.

    |p - c|^2 <= r^2 is |c|^2 - r^2 - 2 p.c <= -|p|^2, so the minima of one matrix product decide.
    """
    lengths, others = (points.square().sum(1) for points in (truth, other))
    reach, reach_of_other = (
        (1 - SAME) * of - _squared_radii(points, of, k) for points, of in ((truth, lengths), (other, others))
    )
    nearest, covered = torch.full_like(others, torch.inf), []  # of each other point, and of each true one
    for start, rows in split_rows(truth, other):
        product = -2 * (rows @ other.T)
        covered.append((product + reach_of_other).amin(1))
        torch.minimum(nearest, product.add_(reach[start : start + len(rows), None]).amin(0), out=nearest)
    precision, recall = nearest <= (SAME - 1) * others, torch.cat(covered) <= (SAME - 1) * lengths
    return float(precision.double().mean()), float(recall.double().mean())


def _compare(evaluation: Evaluation, network: str, samples: int, k: int, **settings: Any) -> list[Score]:
    def measure(originals: Tensor, features: Tensor, *, network: str, paired: bool) -> list[Score]:
        return precision_recall(originals, features, k=k, network=network, seed=evaluation.seed)  # pairs or not

    return compare_features(evaluation, network, samples, measure, **settings)


def _squared_radii(centres: Tensor, lengths: Tensor, k: int) -> Tensor:
    """Return the squared distance of each centre from its k-th nearest other centre."""
    radii = []
    for start, rows in split_rows(centres, centres):
        distances = torch.addmm(lengths, rows, centres.T, alpha=-2)  # |row|^2 is missing: it changes no order
        distances.diagonal(start).fill_(torch.inf)
        radii.append(distances.topk(k, dim=1, largest=False).values[:, -1])
    return torch.cat(radii) + lengths
