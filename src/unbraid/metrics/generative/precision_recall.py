r"""Improved precision and recall (kynkaanniemi2019): is what was made realistic, and is everything real also made?

Each set's region is the union of balls around its features, each as large as the distance to the k-th nearest other
feature of the set (k = 3). Precision is the share of made features that lie in the region of the real ones, recall the
share of real features that lie in the region of the made ones. Both depend on the number of rows; compare equal ones.
"""

from typing import Any

import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import feature_pair, pieces
from unbraid.metrics.generative.features.feature_sets import CLASSIFIER, EFFICIENTNET, INCEPTION, compare
from unbraid.metrics.intervals import score_mean

SAME = 1e-12
"""Squared distance, over the sum of squared lengths, below which two features are the same but for rounding."""


FACTS: dict[str, Any] = {"reference": "kynkaanniemi2019"}


@metric("precision-recall/efficientnet-lite0", **FACTS, **EFFICIENTNET)
def efficientnet(evaluation: Evaluation, *, samples: int = 2_000, size: int = 224, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in EfficientNet-Lite0 features."""
    return _on_run(evaluation, "efficientnet-lite0", samples, k, size=size)


@metric("precision-recall/inception", **FACTS, **INCEPTION)
def inception(evaluation: Evaluation, *, samples: int = 10_000, weights: str | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in Inception features."""
    return _on_run(evaluation, "inception", samples, k, weights=weights)


@metric("precision-recall/classifier", bounds=(0.0, 1.0), **FACTS, **CLASSIFIER)
def classifier(evaluation: Evaluation, *, samples: int = 5_000, steps: int | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in features of a label classifier."""
    return _on_run(evaluation, "classifier", samples, k, steps=steps)


def precision_recall(real: Any, made: Any, *, k: int = 3, network: str = "given") -> list[Score]:
    """Precision and recall of made features [rows, features] against real ones; `network` names the features.

    The 95% intervals are those of a share, the regions taken as given. A CUDA tensor is worked on where it is.
    """
    truth, other = feature_pair(real, made, ("real", "made"))
    check_at_least(1, k=k)
    if min(len(truth), len(other)) <= k:
        raise DataError(f"{k} nearest neighbours need more than {k} rows, not {min(len(truth), len(other))}.")
    middle = truth.mean(0)
    truth, other = truth - middle, other - middle  # distances stay, and their rounding error falls
    inside = {"precision": _inside(truth, other, k), "recall": _inside(other, truth, k)}
    details = {"features": truth.shape[1], "sizes": [len(truth), len(other)], "k": k}
    shares = {part: hits.double().cpu().numpy() for part, hits in inside.items()}
    return [score_mean("precision-recall", network, each, part, (0.0, 1.0), details) for part, each in shares.items()]


def _on_run(evaluation: Evaluation, network: str, samples: int, k: int, **settings: Any) -> list[Score]:
    def measure(originals: Tensor, features: Tensor, paired: bool) -> list[Score]:
        return precision_recall(originals, features, k=k, network=network)

    return compare(evaluation, network, samples, measure, **settings)


def _inside(centres: Tensor, points: Tensor, k: int) -> Tensor:
    """Whether each point lies in one of the balls around the centres [points].

    |p - c|^2 <= r^2 is |c|^2 - r^2 - 2 p.c <= -|p|^2, so one product and the least of each row decide.
    """
    lengths = centres.square().sum(1)
    reach = (1 - SAME) * lengths - _squared_radii(centres, lengths, k)
    inside = [
        torch.addmm(reach, rows, centres.T, alpha=-2).amin(1) <= (SAME - 1) * rows.square().sum(1)
        for _, rows in pieces(points, centres)
    ]
    return torch.cat(inside)


def _squared_radii(centres: Tensor, lengths: Tensor, k: int) -> Tensor:
    """Squared distance of each centre from its k-th nearest other centre."""
    radii = []
    for start, rows in pieces(centres, centres):
        distances = torch.addmm(lengths, rows, centres.T, alpha=-2)  # less |row|^2, which changes no order
        distances.diagonal(start).fill_(torch.inf)
        radii.append(distances.topk(k, dim=1, largest=False).values[:, -1])
    return torch.cat(radii) + lengths
