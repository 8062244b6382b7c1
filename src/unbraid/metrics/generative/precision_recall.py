r"""Improved precision and recall (kynkaanniemi2019): are generated images realistic, and do they cover the real ones?

A set's region is the union of balls around its features; each ball reaches to the k-th nearest other feature of the set
(k = 3). Precision is the share of generated features in the region of the real ones, recall the share of real features
in the region of the generated ones. Both depend on the number of rows: compare equal numbers only.
"""

from typing import Any

import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import read_feature_pair, split_rows
from unbraid.metrics.generative.features.feature_sets import CLASSIFIER, EFFICIENTNET, INCEPTION, compare_features
from unbraid.metrics.intervals import score_mean

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


def precision_recall(real: Any, made: Any, *, k: int = 3, network: str = "given") -> list[Score]:
    """Return precision and recall of generated features [rows, features] against real ones.

    `network` names the features. The 95% intervals are those of a share and take the regions as fixed. CUDA tensors
    stay on their device.
    """
    truth, other = read_feature_pair(real, made, ("real", "made"))
    check_at_least(1, k=k)
    if min(len(truth), len(other)) <= k:
        raise DataError(f"{k} nearest neighbours need more than {k} rows, not {min(len(truth), len(other))}.")
    middle = truth.mean(0)
    truth, other = truth - middle, other - middle  # equal distances with less rounding error
    inside = {"precision": _inside(truth, other, k), "recall": _inside(other, truth, k)}
    details = {"features": truth.shape[1], "sizes": [len(truth), len(other)], "k": k}
    shares = {part: hits.double().cpu().numpy() for part, hits in inside.items()}
    return [score_mean("precision-recall", network, each, part, (0.0, 1.0), details) for part, each in shares.items()]


def _compare(evaluation: Evaluation, network: str, samples: int, k: int, **settings: Any) -> list[Score]:
    def measure(originals: Tensor, features: Tensor, *, network: str, paired: bool) -> list[Score]:
        return precision_recall(originals, features, k=k, network=network)  # takes no account of pairs

    return compare_features(evaluation, network, samples, measure, **settings)


def _inside(centres: Tensor, points: Tensor, k: int) -> Tensor:
    """Return a mask [points] of the points that lie in a ball around one of the centres.

    |p - c|^2 <= r^2 is |c|^2 - r^2 - 2 p.c <= -|p|^2, so one matrix product and its row minima decide.
    """
    lengths = centres.square().sum(1)
    reach = (1 - SAME) * lengths - _squared_radii(centres, lengths, k)
    inside = [
        torch.addmm(reach, rows, centres.T, alpha=-2).amin(1) <= (SAME - 1) * rows.square().sum(1)
        for _, rows in split_rows(points, centres)
    ]
    return torch.cat(inside)


def _squared_radii(centres: Tensor, lengths: Tensor, k: int) -> Tensor:
    """Return the squared distance of each centre from its k-th nearest other centre."""
    radii = []
    for start, rows in split_rows(centres, centres):
        distances = torch.addmm(lengths, rows, centres.T, alpha=-2)  # |row|^2 is missing: it changes no order
        distances.diagonal(start).fill_(torch.inf)
        radii.append(distances.topk(k, dim=1, largest=False).values[:, -1])
    return torch.cat(radii) + lengths
