r"""Mixtures of diagonal Gaussians, fitted by expectation maximisation from a k-means start.

    p(x) = sum_c pi_c N(x; mu_c, diag v_c),    v_c >= floor

The M-step's variance is the larger of its closed form and the floor, which maximises the expected log likelihood under
that constraint: the log likelihood never falls. k-means starts by k-means++ (arthur2007). Rows are read in pieces and
summed in float64 around the mean of all rows, so that small variances survive. Random numbers come from
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

NUMBERS_PER_PIECE = 1 << 24

MAX_KMEANS_STEPS = 30

MIN_COUNT = 1e-8
"""A component with a smaller (weighted) number of rows is empty and keeps its place."""


class Mixture(NamedTuple):
    """Log weights [components], means and variances [components, features]; leading member axes are allowed."""

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def joint(self, x: Tensor) -> Tensor:
        """Return log pi_c + log N(x; mu_c, v_c) of rows [rows, features], one column per component.

        It works component by component: the usual expansion of the square loses small variances in float32.
        """
        parts = zip(self.means.unbind(-2), self.variances.unbind(-2), strict=True)
        logs = [(-0.5 * ((x - mean).square() / variance + variance.log())).sum(-1) for mean, variance in parts]
        return self.log_weights + torch.stack(logs, -1) - 0.5 * x.shape[-1] * math.log(2 * math.pi)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log p(x) of each row."""
        return self.joint(x).logsumexp(-1)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance [features] of the whole mixture."""
        weights = self.log_weights.exp().unsqueeze(-1)
        mean = (weights * self.means).sum(-2)
        return mean, (weights * (self.variances + (self.means - mean.unsqueeze(-2)).square())).sum(-2)


class MixtureFit(NamedTuple):
    """A mixture, and the mean log likelihood of a row before each step and after the last."""

    mixture: Mixture
    log_likelihood: list[float]


def fit_mixture(
    x: Tensor, components: int, *, floor: float = 1e-4, seed: int = 0, steps: int = 100, tolerance: float = 1e-3
) -> MixtureFit:
    """Fit a mixture to rows [rows, features] in float64, on their device.

    The fit ends after `steps`, or when a step adds less than `tolerance` nats to the log likelihood of a row.
    """
    _check_arguments(x, components, floor)
    middle = torch.stack([piece.sum(0) for piece in _split(x)]).sum(0) / len(x)
    labels = kmeans(x, components, seed)
    mixture = _maximise(_sum_moments(x, middle, components, labels=labels), middle, floor, None)
    trace: list[float] = []
    for _ in range(steps):
        sums = _sum_moments(x, middle, components, mixture=mixture)
        trace.append(float(sums.log_likelihood) / len(x))
        if len(trace) > 1 and trace[-1] - trace[-2] < tolerance:
            return MixtureFit(mixture, trace)
        mixture = _maximise(sums, middle, floor, mixture)
    trace.append(float(sum(mixture.log_density(piece).sum() for piece in _split(x))) / len(x))
    return MixtureFit(mixture, trace)


def kmeans(x: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Return the cluster of each row [rows], after at most 30 steps."""
    centres, labels = _choose_centres(x, clusters, seed), None
    for _ in range(MAX_KMEANS_STEPS):
        nearest = torch.cat([_square_distances(piece, centres).argmin(-1) for piece in _split(x)])
        if labels is not None and torch.equal(nearest, labels):
            break
        labels = nearest
        sums, counts = torch.zeros_like(centres), torch.zeros_like(centres[:, 0])
        for piece, part in zip(_split(x), labels.split(_rows_per_piece(x)), strict=True):
            belongs = (part[:, None] == torch.arange(clusters, device=x.device)).to(piece.dtype)
            sums, counts = sums + belongs.T @ piece, counts + belongs.sum(0)
        centres = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp_min(1), centres)
    assert labels is not None
    return labels


def _choose_centres(x: Tensor, clusters: int, seed: int) -> Tensor:
    """Return first centres, each a row drawn in proportion to its squared distance from the centres before it."""
    drawn = noise.uniform(noise.seed_tensor(seed), 0, "kmeans", (clusters,))[0].double()
    chosen = [min(int(drawn[0] * len(x)), len(x) - 1)]
    nearest = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)
    for number in drawn[1:].tolist():
        centre = x[chosen[-1]].double()[None]
        nearest = nearest.minimum(torch.cat([_square_distances(piece, centre)[:, 0] for piece in _split(x)]))
        grown = nearest.cumsum(0)
        place = torch.searchsorted(grown, number * grown[-1:], right=True)
        chosen.append(min(int(place), len(x) - 1))
    return x[torch.tensor(chosen, device=x.device)].double()


def _square_distances(x: Tensor, centres: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True) - 2 * x @ centres.T + centres.square().sum(-1)
    return square.clamp_min(0)


class _Sums(NamedTuple):
    """Counts, sums and sums of squares of rows around the middle, weighted by component, and the log likelihood."""

    counts: Tensor
    first: Tensor
    second: Tensor
    log_likelihood: Tensor


def _sum_moments(
    x: Tensor, middle: Tensor, components: int, labels: Tensor | None = None, mixture: Mixture | None = None
) -> _Sums:
    """Return the sums of the E-step; rows belong to labels, or to components by their responsibilities."""
    zeros = torch.zeros(components, x.shape[1], dtype=torch.float64, device=x.device)
    counts, first, second, total = zeros[:, 0], zeros, zeros, zeros[0, 0]
    for start, piece in zip(range(0, len(x), _rows_per_piece(x)), _split(x), strict=True):
        around = piece - middle
        if mixture is None:
            assert labels is not None
            chosen = labels[start : start + len(piece), None] == torch.arange(components, device=x.device)
            belongs = chosen.to(torch.float64)
        else:
            joint = _joint_by_products(mixture, around, middle)
            total, belongs = total + joint.logsumexp(-1).sum(), joint.softmax(-1)
        counts, first = counts + belongs.sum(0), first + belongs.T @ around
        second = second + belongs.T @ around.square()
    return _Sums(counts, first, second, total)


def _joint_by_products(mixture: Mixture, around: Tensor, middle: Tensor) -> Tensor:
    """Return `Mixture.joint` by matrix products, which are exact enough in float64."""
    means, precision = mixture.means - middle, mixture.variances.reciprocal()
    square = around.square() @ precision.T - 2 * around @ (means * precision).T + (means.square() * precision).sum(-1)
    constant = mixture.variances.log().sum(-1) + around.shape[-1] * math.log(2 * math.pi)
    return mixture.log_weights - 0.5 * (square + constant)


def _maximise(sums: _Sums, middle: Tensor, floor: float, before: Mixture | None) -> Mixture:
    """Return the mixture of the M-step; an empty component stays as it was `before`."""
    counts = sums.counts[:, None].clamp_min(MIN_COUNT)
    means = sums.first / counts
    variances = (sums.second / counts - means.square()).clamp_min(floor)
    log_weights = (sums.counts.clamp_min(MIN_COUNT) / sums.counts.sum()).log()
    means = means + middle
    if before is not None:
        empty = sums.counts[:, None] <= MIN_COUNT
        means, variances = torch.where(empty, before.means, means), torch.where(empty, before.variances, variances)
    return Mixture(log_weights - log_weights.logsumexp(-1), means, variances)


def _rows_per_piece(x: Tensor) -> int:
    return max(1, NUMBERS_PER_PIECE // x.shape[1])


def _split(x: Tensor) -> Iterator[Tensor]:
    """Yield rows in float64, some at a time."""
    return (piece.double() for piece in x.split(_rows_per_piece(x)))


def _check_arguments(x: Tensor, components: int, floor: float) -> None:
    if components < 1 or len(x) < components:
        raise UsageError(f"A mixture of {components} components needs at least as many rows, not {len(x)}.")
    if not 0 < floor < math.inf:
        raise UsageError(f"The floor of a mixture's variances must be above 0, not {floor:g}.")
    if not bool(x.isfinite().all()):
        raise UsageError("A mixture cannot be fitted to observations that are not finite.")
