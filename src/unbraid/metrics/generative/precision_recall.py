r"""Improved precision and recall (kynkaanniemi2019): are generated images realistic, and do they cover the real ones?

A set's region is the union of balls around its features; each ball reaches to the k-th nearest other feature of the set
(k = 3). Precision is the share of generated features in the region of the real ones, recall the share of real features
in the region of the generated ones. Both depend on the number of rows: compare equal numbers only.

The variance of such a share P of m counted features has two parts, since these are independent given the region:

    Var P = E p (1 - p) / m + Var p,    p the probability of the region.

The first, about two thirds of the whole, is known from P. The second comes from regions of disjoint halves of the
features that make it (`Spread.of_refits`), all of them tried on the same m features; the balls are local, so that it
falls with one over the number of features, as for any sum of local terms (penrose2003). So ten pairs of halves have
about 30 degrees of freedom. Halves of both sets would have ten, and need distances of their own.
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
from unbraid.metrics.intervals import Spread, draw_halves, no_interval, spread_at

SAME = 1e-12
"""Squared distance, relative to the sum of squared lengths, below which two features differ by rounding only."""

FACTS: dict[str, Any] = {"reference": "kynkaanniemi2019", "bounds": (0.0, 1.0)}


@metric("precision-recall/efficientnet-lite0", **FACTS, **EFFICIENTNET)
def efficientnet(evaluation: Evaluation, *, samples: int = 2_000, size: int = 224, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in EfficientNet-Lite0 features."""
    return _compare(evaluation, "efficientnet-lite0", samples, k, size=size)


@metric("precision-recall/inception", **FACTS, **INCEPTION)
def inception(evaluation: Evaluation, *, samples: int = 10_000, weights: str | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in Inception features."""
    return _compare(evaluation, "inception", samples, k, weights=weights)


@metric("precision-recall/classifier", **FACTS, **CLASSIFIER)
def classifier(evaluation: Evaluation, *, samples: int = 5_000, steps: int | None = None, k: int = 3) -> list[Score]:
    """Precision and recall of reconstructions and of prior samples in features of a label classifier."""
    return _compare(evaluation, "classifier", samples, k, steps=steps)


def precision_recall(
    real: Any, made: Any, *, k: int = 3, network: str = "given", resamples: int = 20, seed: int = 0
) -> list[Score]:
    """Return precision and recall of generated features [rows, features] against real ones.

    `network` names the features. The 95% intervals are for means over draws of as many rows: the spread of the counted
    rows, plus that of the region, from `resamples` random halves of its rows. CUDA tensors stay on their device.
    """
    truth, other = read_feature_pair(real, made, ("real", "made"))
    check_at_least(1, k=k)
    if min(len(truth), len(other)) <= k:
        raise DataError(f"{k} nearest neighbours need more than {k} rows, not {min(len(truth), len(other))}.")
    middle = truth.mean(0)
    truth, other = truth - middle, other - middle  # equal distances with less rounding error
    details = {"features": truth.shape[1], "sizes": [len(truth), len(other)], "k": k}
    count = resamples if min(len(truth), len(other)) >= 4 * k else 0
    halves = draw_halves([len(truth), len(other)], count, np.random.default_rng(seed))
    regions = [Regions.around(points, k, [of[i] for of in halves]) for i, points in enumerate((truth, other))]
    scores = []
    for part, (inside, refits) in zip(("precision", "recall"), find_members(*regions), strict=True):
        value, rows = float(inside.mean()), len(inside)
        spread = Spread.of_refits(inside, refits, 0.5)
        interval = spread and spread.share_interval(value, rows)
        covers = spread_at(rows) if interval else no_interval("it needs more rows or resamples")
        scores.append(Score("precision-recall", network, value, rows, interval, part, details=details, covers=covers))
    return scores


class Regions(NamedTuple):
    """The region of all points of a set, and those of pairs of disjoint halves of them.

    |p - c|^2 <= r^2 is |c|^2 - r^2 - 2 p.c <= -|p|^2, so a ball is known by the first two terms, its `reach`.
    """

    points: Tensor
    limits: Tensor
    """-|p|^2 of each point."""
    reach: Tensor
    """[points] of the balls around all points."""
    reach_of_halves: Tensor
    """[pairs, points] of the balls around the points of the half in which a point is."""
    side: Tensor
    """Which half of each pair a point is in [pairs, points]: 0 or 1."""

    @classmethod
    def around(cls, points: Tensor, k: int, halves: Sequence[np.ndarray]) -> "Regions":
        """Return the regions of balls that reach to the k-th nearest other point of all, and of the same half."""
        lengths = points.square().sum(1)
        side = torch.full((len(halves) // 2, len(points)), 2, dtype=torch.int8)  # 2: the odd point in neither half
        for number, rows in enumerate(halves):
            side[number // 2, torch.as_tensor(rows)] = number % 2
        side = side.to(points.device)
        radii, of_halves = _find_squared_radii(points, lengths, k, side)
        ends = (1 - SAME) * lengths
        reach_of_halves = torch.where(side == 2, torch.inf, ends - of_halves)
        return cls(points, (SAME - 1) * lengths, ends - radii, reach_of_halves, side.clamp(max=1).long())


def find_members(truth: Regions, other: Regions) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for precision and for recall which points lie in the other set's region [rows], and in those of halves.

    The latter are [halves, rows]. A block of products decides for all regions: few pairs of a point and a centre are
    near enough for any of the halves.
    """
    sizes = len(other.points), len(truth.points)
    nearest, covered = torch.full_like(other.limits, torch.inf), []
    by_halves = [
        torch.zeros((len(of.side), 2, rows), dtype=torch.bool, device=of.side.device)
        for of, rows in zip((truth, other), sizes, strict=True)
    ]
    for start, rows in split_rows(truth.points, other.points):
        block = slice(start, start + len(rows))
        product = -2 * (rows @ other.points.T)
        if len(truth.side):
            _mark_members(by_halves[0], product, truth, block, other.limits)
            _mark_members(by_halves[1][..., block], product.T, other, slice(None), truth.limits[block])
        covered.append((product + other.reach).amin(1))
        torch.minimum(nearest, product.add_(truth.reach[block, None]).amin(0), out=nearest)
    inside = nearest <= other.limits, torch.cat(covered) <= truth.limits
    return [
        (of_all.double().cpu().numpy(), of_halves.flatten(0, 1).double().cpu().numpy())
        for of_all, of_halves in zip(inside, by_halves, strict=True)
    ]


def _mark_members(marks: Tensor, product: Tensor, centres: Regions, block: slice, limits: Tensor) -> None:
    """Mark the points [pairs, 2, points] that lie in balls of halves, given -2 c.p of a block of centres c."""
    reach, side = centres.reach_of_halves[:, block], centres.side[:, block]
    centre, point = torch.nonzero(product + reach.amin(0)[:, None] <= limits, as_tuple=True)
    ends, products = limits[point], product[centre, point]
    for pair in range(len(side)):
        near = products + reach[pair, centre] <= ends
        marks[pair, side[pair, centre[near]], point[near]] = True


def _find_squared_radii(points: Tensor, lengths: Tensor, k: int, side: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distance of each point from its k-th nearest other point [points], and from that of its half.

    The latter are [pairs, points]. Of a point's nearest ones about half are in its own half of each pair, so a few
    times k of them nearly always hold k such ones.
    """
    count, radii, of_halves = min(8 * (k + 1), len(points) - 1) if len(side) else k, [], []
    for start, rows in split_rows(points, points):
        distances = torch.addmm(lengths, rows, points.T, alpha=-2)  # |row|^2 is missing: it changes no order
        distances.diagonal(start).fill_(torch.inf)
        nearest = distances.topk(count, dim=1, largest=False)
        radii.append(nearest.values[:, k - 1])
        own = side[:, start : start + len(rows), None]
        rank = (side[:, nearest.indices] == own).cumsum(2, dtype=torch.int16)  # [pairs, rows, nearest]
        found = torch.where(rank >= k, nearest.values, torch.inf).amin(2)
        for pair, row in torch.nonzero(rank[..., -1] < k).tolist():
            same = distances[row, side[pair] == own[pair, row]]
            found[pair, row] = same.kthvalue(k).values if len(same) > k else torch.inf
        of_halves.append(found)
    return torch.cat(radii) + lengths, torch.cat(of_halves, 1) + lengths


def _compare(evaluation: Evaluation, network: str, samples: int, k: int, **settings: Any) -> list[Score]:
    def measure(originals: Tensor, features: Tensor, *, network: str, paired: bool) -> list[Score]:
        return precision_recall(originals, features, k=k, network=network, seed=evaluation.seed)  # pairs or not

    return compare_features(evaluation, network, samples, measure, **settings)
