r"""Mixtures of diagonal Gaussians, fitted by expectation and maximisation from a k-means start.

    p(x) = sum_c pi_c N(x; mu_c, diag v_c),    v_c >= floor

The M-step's variance is the larger of its closed form and the floor, which maximises the expected log likelihood under
that constraint: the log likelihood never falls. k-means starts by k-means++ (arthur2007). Rows are read in pieces,
whose sums are made in float64 around the mean of all rows, so that small variances survive. Random numbers are those of
`unbraid.noise`: one seed, one fit.

Kept beside scikit-learn's GaussianMixture, which is three to seven times as fast on a CPU: it fits other mixtures, so
`ms-flow` would not train to the weights of stored runs, and it does not fit on a GPU.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError

PIECE = 1 << 24
"""Numbers that are read at a time."""

MAX_MOVES = 30
"""Steps of k-means at most."""

MIN_COUNT = 1e-8
"""Rows below which a component has none, and stays where it is."""


class Mixture(NamedTuple):
    """Log weights [components], means and variances [components, features]; leading member axes are allowed."""

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def joint(self, x: Tensor) -> Tensor:
        """log pi_c + log N(x; mu_c, v_c) of rows [rows, features], one column per component.

        Component by component: the usual expansion of the square loses small variances in float32.
        """
        parts = zip(self.means.unbind(-2), self.variances.unbind(-2), strict=True)
        logs = [(-0.5 * ((x - mean).square() / variance + variance.log())).sum(-1) for mean, variance in parts]
        return self.log_weights + torch.stack(logs, -1) - 0.5 * x.shape[-1] * math.log(2 * math.pi)

    def log_density(self, x: Tensor) -> Tensor:
        """log p(x) of each row."""
        return self.joint(x).logsumexp(-1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance [features] of the whole mixture."""
        weights = self.log_weights.exp().unsqueeze(-1)
        mean = (weights * self.means).sum(-2)
        return mean, (weights * (self.variances + (self.means - mean.unsqueeze(-2)).square())).sum(-2)


class MixtureFit(NamedTuple):
    """A mixture and the mean log likelihood of a row before each step and after the last."""

    mixture: Mixture
    log_likelihood: list[float]


def fit_mixture(
    x: Tensor, components: int, *, floor: float = 1e-4, seed: int = 0, steps: int = 100, tolerance: float = 1e-3
) -> MixtureFit:
    """Fit rows [rows, features], where they are, in float64.

    Ends after `steps`, or when a step adds less than `tolerance` nats to the log likelihood of a row.
    """
    _refuse(x, components, floor)
    middle = torch.stack([piece.sum(0) for piece in _pieces(x)]).sum(0) / len(x)
    labels = kmeans(x, components, seed)
    mixture = _maximised(_moments(x, middle, components, labels=labels), middle, floor, None)
    trace: list[float] = []
    for _ in range(steps):
        sums = _moments(x, middle, components, mixture=mixture)
        trace.append(float(sums.log_likelihood) / len(x))
        if len(trace) > 1 and trace[-1] - trace[-2] < tolerance:
            return MixtureFit(mixture, trace)
        mixture = _maximised(sums, middle, floor, mixture)
    trace.append(float(sum(mixture.log_density(piece).sum() for piece in _pieces(x))) / len(x))
    return MixtureFit(mixture, trace)


def kmeans(x: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """The cluster [rows] of each row, after at most 30 moves of the centres."""
    centres, labels = _spread(x, clusters, seed), None
    for _ in range(MAX_MOVES):
        found = torch.cat([_distances(piece, centres).argmin(-1) for piece in _pieces(x)])
        if labels is not None and torch.equal(found, labels):
            break
        labels = found
        sums, counts = torch.zeros_like(centres), torch.zeros_like(centres[:, 0])
        for piece, own in zip(_pieces(x), labels.split(_length(x)), strict=True):
            belongs = (own[:, None] == torch.arange(clusters, device=x.device)).to(piece.dtype)
            sums, counts = sums + belongs.T @ piece, counts + belongs.sum(0)
        centres = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp_min(1), centres)
    assert labels is not None
    return labels


def _spread(x: Tensor, clusters: int, seed: int) -> Tensor:
    """First centres: each a row drawn with a probability that grows with its squared distance to those before it."""
    drawn = noise.uniform(noise.seed_tensor(seed), 0, "kmeans", (clusters,))[0].double()
    chosen = [min(int(drawn[0] * len(x)), len(x) - 1)]
    nearest = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)
    for number in drawn[1:].tolist():
        centre = x[chosen[-1]].double()[None]
        nearest = nearest.minimum(torch.cat([_distances(piece, centre)[:, 0] for piece in _pieces(x)]))
        grown = nearest.cumsum(0)
        place = torch.searchsorted(grown, number * grown[-1:], right=True)
        chosen.append(min(int(place), len(x) - 1))
    return x[torch.tensor(chosen, device=x.device)].double()


def _distances(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances [rows, centres]."""
    square = x.square().sum(-1, keepdim=True) - 2 * x @ centres.T + centres.square().sum(-1)
    return square.clamp_min(0)


class _Sums(NamedTuple):
    """Of rows around the middle, weighted by component: counts, sums, sums of squares, and the log likelihood."""

    counts: Tensor
    first: Tensor
    second: Tensor
    log_likelihood: Tensor


def _moments(
    x: Tensor, middle: Tensor, components: int, labels: Tensor | None = None, mixture: Mixture | None = None
) -> _Sums:
    """The E-step, summed: rows belong to labels, or to components by the mixture's responsibilities."""
    zeros = torch.zeros(components, x.shape[1], dtype=torch.float64, device=x.device)
    counts, first, second, total = zeros[:, 0], zeros, zeros, zeros[0, 0]
    for start, piece in zip(range(0, len(x), _length(x)), _pieces(x), strict=True):
        around = piece - middle
        if mixture is None:
            assert labels is not None
            own = labels[start : start + len(piece), None] == torch.arange(components, device=x.device)
            belongs = own.to(torch.float64)
        else:
            joint = _joint_by_products(mixture, around, middle)
            total, belongs = total + joint.logsumexp(-1).sum(), joint.softmax(-1)
        counts, first = counts + belongs.sum(0), first + belongs.T @ around
        second = second + belongs.T @ around.square()
    return _Sums(counts, first, second, total)


def _joint_by_products(mixture: Mixture, around: Tensor, middle: Tensor) -> Tensor:
    """`Mixture.joint` as products of matrices, which float64 can afford."""
    means, precision = mixture.means - middle, mixture.variances.reciprocal()
    square = around.square() @ precision.T - 2 * around @ (means * precision).T + (means.square() * precision).sum(-1)
    constant = mixture.variances.log().sum(-1) + around.shape[-1] * math.log(2 * math.pi)
    return mixture.log_weights - 0.5 * (square + constant)


def _maximised(sums: _Sums, middle: Tensor, floor: float, before: Mixture | None) -> Mixture:
    """The M-step."""
    counts = sums.counts[:, None].clamp_min(MIN_COUNT)
    means = sums.first / counts
    variances = (sums.second / counts - means.square()).clamp_min(floor)
    log_weights = (sums.counts.clamp_min(MIN_COUNT) / sums.counts.sum()).log()
    means = means + middle
    if before is not None:
        empty = sums.counts[:, None] <= MIN_COUNT
        means, variances = torch.where(empty, before.means, means), torch.where(empty, before.variances, variances)
    return Mixture(log_weights - log_weights.logsumexp(-1), means, variances)


def _length(x: Tensor) -> int:
    return max(1, PIECE // x.shape[1])


def _pieces(x: Tensor) -> Iterator[Tensor]:
    """Rows in float64, some at a time."""
    return (piece.double() for piece in x.split(_length(x)))


def _refuse(x: Tensor, components: int, floor: float) -> None:
    if components < 1 or len(x) < components:
        raise UsageError(f"A mixture of {components} components needs as many rows, and there are {len(x)}.")
    if not 0 < floor < math.inf:
        raise UsageError(f"The floor of a mixture's variances must be above 0, not {floor:g}.")
    if not bool(x.isfinite().all()):
        raise UsageError("A mixture cannot be fitted to observations that are not finite.")
