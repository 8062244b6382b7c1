r"""Models without one of the four terms of the bound (esmaeili2018, figures 2 and 3), on points in a plane.

    L = 1 + 2 + 3 + 4      1   E_q(x,z) log p(x|z) / p(x)       information of a code about its point
                           2   -I(x; z) under q                 3   -KL(q(x) || p(x))      4   -KL(q(z) || p(z))

Each member maximises the terms that it keeps. The latent has one dimension, so log p(x) is an integral over a grid and
q(z) a sum over all points, both exact; codes are sampled. Networks have one hidden layer, p(x|z) is Normal with a fixed
deviation, and all members train as one stacked program.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.density.small_fit import descend
from unbraid.experiments.results import make_member
from unbraid.report.tables import Member

SERIES = ("all terms", "without 1", "without 2", "without 3", "without 4")
SCORES = ("gain/sampled", "mi/all-points", "data-kl/quadrature", "prior-kl/all-points")
"""Term 1, and the negatives of the other three; the third is a difference of densities."""

HIDDEN, DEVIATION = 32, 0.25
CENTRES = ((1.5, 1.5), (1.5, -1.5), (-1.5, 1.5), (-1.5, -1.5))
SPREAD = 0.2
REACH, GRID_POINTS = 5.0, 201


class StackedNetworks(NamedTuple):
    """Weights [member, in, out] of the encoders and decoders of all members."""

    tensors: list[Tensor]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log deviation [member, point]."""
        outputs = _apply_layers(x, self.tensors[:4])
        return outputs[..., 0], outputs[..., 1].clamp(-5, 2)

    def decode(self, z: Tensor) -> Tensor:
        """Return means [member, code, 2]."""
        return _apply_layers(z.unsqueeze(-1), self.tensors[4:])


def train_without_terms(settings: Mapping[str, Any]) -> list[Member]:
    """Train models on `points` for `steps`, by removed term and `seed`, and return their four terms.

    Each term is a mean over `draws` of all codes.
    """
    seeds = list(settings["seed"])
    keep = torch.ones(len(SERIES), 4)
    keep[range(1, 5), range(4)] = 0
    keep = keep.repeat_interleave(len(seeds), 0)  # [member, term]
    x = torch.stack([draw_points(settings["points"], seed) for seed in seeds]).repeat(len(SERIES), 1, 1)
    stack = init_networks(seeds)
    noise = torch.randn(settings["steps"], *x.shape[:2], generator=torch.Generator().manual_seed(0))

    def loss(step: Tensor) -> Tensor:
        return -(keep * compute_terms(stack, x, noise.index_select(0, step)[0])).sum()

    rates = 5e-3 * torch.linspace(1, 0.05, settings["steps"])
    descend("removing terms", stack.tensors, loss, rates)
    with torch.no_grad():
        last = torch.randn(settings["draws"], *x.shape[:2], generator=torch.Generator().manual_seed(1))
        found = torch.stack([compute_terms(stack, x, each) for each in last]).mean(0)
    signs = torch.tensor([1, -1, -1, -1])
    return [
        make_member(series, seed, dict(zip(SCORES, row, strict=True)), settings["draws"])
        for (series, seed), row in zip(product(SERIES, seeds), (signs * found).tolist(), strict=True)
    ]


def draw_points(count: int, seed: int) -> Tensor:
    """Return points around the corners of a square [count, 2]."""
    drawn = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(CENTRES)[torch.arange(count) % len(CENTRES)] + SPREAD * drawn


def init_networks(seeds: list[int]) -> StackedNetworks:
    """Return the first weights, the same for all members of one seed."""
    shapes = ((2, HIDDEN), (1, HIDDEN), (HIDDEN, 2), (1, 2), (1, HIDDEN), (1, HIDDEN), (HIDDEN, 2), (1, 2))
    tensors = []
    for position, shape in enumerate(shapes):
        weights = [_draw_weights(shape, 8 * seed + position) for seed in seeds]
        tensors.append(torch.stack(weights).repeat(len(SERIES), 1, 1).requires_grad_())
    return StackedNetworks(tensors)


def compute_terms(stack: StackedNetworks, x: Tensor, noise: Tensor) -> Tensor:
    """Return the four terms [member, 4] with one code per point."""
    mean, log_deviation = stack.encode(x)
    z = mean + log_deviation.exp() * noise
    posterior = log_normal(z - mean, log_deviation)
    pairs = log_normal(z[:, :, None] - mean[:, None], log_deviation[:, None])  # [member, code, point]
    marginal = pairs.logsumexp(-1) - math.log(x.shape[1])
    evidence = log_evidence(stack, x)
    gain = _log_likelihood(stack.decode(z), x) - evidence
    prior = log_normal(z, torch.zeros_like(z))
    parts = (gain, marginal - posterior, evidence + math.log(x.shape[1]), prior - marginal)
    return torch.stack([part.mean(-1) for part in parts], -1)


def log_evidence(stack: StackedNetworks, x: Tensor) -> Tensor:
    """Return log p(x) [member, point] by quadrature over the latent."""
    places = torch.linspace(-REACH, REACH, GRID_POINTS)
    log_weight = log_normal(places, torch.zeros_like(places)) + math.log(2 * REACH / (GRID_POINTS - 1))
    means = stack.decode(places.expand(len(x), -1))  # [member, place, 2]
    return (_log_likelihood(means[:, None], x[:, :, None]) + log_weight).logsumexp(-1)


def log_normal(distance: Tensor, log_deviation: Tensor) -> Tensor:
    """Return the log density of a Normal variable at a distance from its mean."""
    return -0.5 * (distance / log_deviation.exp()).square() - log_deviation - 0.5 * math.log(2 * math.pi)


def _log_likelihood(means: Tensor, x: Tensor) -> Tensor:
    return log_normal(x - means, torch.full_like(means, math.log(DEVIATION))).sum(-1)


def _apply_layers(x: Tensor, weights: list[Tensor]) -> Tensor:
    first, shift, second, last = weights
    return torch.tanh(x @ first + shift) @ second + last


def _draw_weights(shape: tuple[int, int], seed: int) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1000 + seed))
    return drawn / math.sqrt(shape[0]) if shape[0] > 1 else drawn
