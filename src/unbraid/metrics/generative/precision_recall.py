r"""Improved precision and recall (kynkaanniemi2019): are generated images realistic, and do they cover the real ones?

A set's region is the union of balls around its features; each ball reaches to the k-th nearest other feature of the set
(k = 3). Precision is the share of generated features in the region of the real ones, recall the share of real features
in the region of the generated ones. Both depend on the number of rows: compare equal numbers only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import read_feature_pair, split_rows
from unbraid.metrics.generative.features.feature_sets import CLASSIFIER, EFFICIENTNET, INCEPTION, compare_features
from unbraid.metrics.intervals import draw_halves, halves_share_interval, no_interval, spread_at

SAME = 1e-12
"""Squared distance, relative to the sum of squared lengths, below which two features differ by rounding only."""

NEIGHBOURS_PER_K = 8
"""Nearest neighbours that are kept for each of the k: almost surely k of them are in any half of the rows."""

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
    enough = min(len(truth), len(other)) >= 4 * k
    halves = draw_halves([len(truth), len(other)], resamples if enough else 0, np.random.default_rng(seed))
    found = _measure(truth, other, k, halves)
    scores = []
    for part, (value, *drawn) in zip(("precision", "recall"), found, strict=True):
        counted = other if part == "precision" else truth
        interval = halves_share_interval(value, drawn, len(counted))
        covers = spread_at(len(counted)) if interval else no_interval("it needs more rows or resamples")
        scores.append(
            Score("precision-recall", network, value, len(counted), interval, part, details=details, covers=covers)
        )
    return scores


def _measure(
    truth: Tensor, other: Tensor, k: int, halves: Sequence[Sequence[np.ndarray]]
) -> tuple[list[float], list[float]]:
    """Return the precision and the recall of all rows, followed by those of halves of both sets.

    |p - c|^2 <= r^2 is |c|^2 - r^2 - 2 p.c <= -|p|^2, so the minima of one matrix product decide, for the halves, too:
    there a row that is left out has an infinite |c|^2 - r^2.
    """
    lengths, others = (points.square().sum(1) for points in (truth, other))
    reach = _measure_reach(truth, lengths, k, [rows for rows, _ in halves])  # [1 + halves, rows]
    reach_of_other = _measure_reach(other, others, k, [rows for _, rows in halves])
    nearest, covered = (torch.full_like(of, torch.inf) for of in (reach_of_other, reach))
    for start, rows in split_rows(truth, other):
        product, here = -2 * (rows @ other.T), slice(start, start + len(rows))
        for place, (own, of_other) in enumerate(zip(reach[:, here], reach_of_other, strict=True)):
            chosen = own.isfinite().nonzero()[:, 0]
            if not len(chosen):
                continue
            some = product.index_select(0, chosen)
            covered[place, start + chosen] = (some + of_other).amin(1)
            torch.minimum(nearest[place], some.add_(own[chosen, None]).amin(0), out=nearest[place])
    return _share_within(nearest, reach_of_other, others), _share_within(covered, reach, lengths)


def _share_within(nearest: Tensor, reach: Tensor, lengths: Tensor) -> list[float]:
    """Return the share of the points in each half whose nearest ball holds them."""
    chosen = reach.isfinite()
    return (((nearest <= (SAME - 1) * lengths) & chosen).sum(1) / chosen.sum(1).double()).tolist()


def _compare(evaluation: Evaluation, network: str, samples: int, k: int, **settings: Any) -> list[Score]:
    def measure(originals: Tensor, features: Tensor, *, network: str, paired: bool) -> list[Score]:
        return precision_recall(originals, features, k=k, network=network, seed=evaluation.seed)  # pairs or not

    return compare_features(evaluation, network, samples, measure, **settings)


def _measure_reach(centres: Tensor, lengths: Tensor, k: int, halves: Sequence[np.ndarray]) -> Tensor:
    """Return |c|^2 - r^2 [1 + halves, centres] with the balls of all rows, and with those of each half."""
    near = _find_neighbours(centres, lengths, min(len(centres) - 1, NEIGHBOURS_PER_K * k))
    radii = torch.full((1 + len(halves), len(centres)), -torch.inf, dtype=centres.dtype, device=centres.device)
    radii[0] = near.squared[:, k - 1]
    for own, half in zip(radii[1:], halves, strict=True):
        rows = torch.as_tensor(half, device=centres.device)
        chosen = torch.zeros(len(centres), dtype=torch.bool, device=centres.device).index_fill_(0, rows, True)
        number = chosen[near.places[rows]].cumsum(1)
        enough = number[:, -1] >= k
        own[rows] = near.squared[rows].gather(1, (number < k).sum(1, keepdim=True).clamp_max(number.shape[1] - 1))[:, 0]
        if not bool(enough.all()):  # rarely: few of a row's nearest neighbours are in the half
            own[rows[~enough]] = _find_neighbours(centres[rows], lengths[rows], k).squared[~enough, k - 1]
    return (1 - SAME) * lengths - radii


class _Neighbours(NamedTuple):
    """Squared distances of each centre from its nearest other centres, from near to far, and which they are."""

    squared: Tensor
    places: Tensor


def _find_neighbours(centres: Tensor, lengths: Tensor, count: int) -> _Neighbours:
    squared, places = [], []
    for start, rows in split_rows(centres, centres):
        distances = torch.addmm(lengths, rows, centres.T, alpha=-2)  # |row|^2 is missing: it changes no order
        distances.diagonal(start).fill_(torch.inf)
        found = distances.topk(count, dim=1, largest=False)
        squared.append(found.values)
        places.append(found.indices)
    return _Neighbours(torch.cat(squared) + lengths[:, None], torch.cat(places))
