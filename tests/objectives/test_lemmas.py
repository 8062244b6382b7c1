r"""The lemmas of split2020 on a small model with enumerable data, with independent and with correlated noise.

    lemma 1  I(z_j; x | z_S) = I(z_S, z_j; x) - I(z_S; x)
    lemma 2  I(z_S; x) - sum_i I(z_i; x) = TC(z_S | x) - TC(z_S)

The right side of the first and the left side of the second come from the library's densities, with Gauss-Hermite nodes
in place of the noise; the other sides from integrals on a grid, in numpy alone.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from unbraid.density import batch_aggregate, exact_aggregate
from unbraid.latents import CorrelatedNormal, Normal, Space
from unbraid.objectives import divergences, leaf_information
from unbraid.types import Output

SIZE = 5
GRID = np.linspace(-9, 9, 1201)
STEP = GRID[1] - GRID[0]


@pytest.fixture
def posterior():
    given = torch.randn(SIZE, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return given * torch.tensor([1.0, 1.0, 0.4, 0.4])


def on_the_grid(posterior, correlation):
    """Densities q(z_0, z_1 | x_n) [n, grid, grid], from the formula of a bivariate Gaussian."""
    mean, log_variance = (part.numpy() for part in posterior.chunk(2, -1))
    apart = (GRID[None, :, None] - mean.T[:, None]) / np.exp(log_variance.T / 2)[:, None]  # [2, grid, n]
    a, b = apart[0].T[:, :, None], apart[1].T[:, None, :]
    left = 1 - correlation**2
    scale = 2 * math.pi * math.sqrt(left) * np.exp(log_variance.sum(1) / 2)[:, None, None]
    return np.exp(-(a**2 - 2 * correlation * a * b + b**2) / (2 * left)) / scale


def mean_log(density, *others):
    """Integral of the first density times the log of a ratio: the product of its first half by that of the second."""
    above, below = others
    ratio = np.log(np.maximum(above, 1e-300)) - np.log(np.maximum(below, 1e-300))
    return float((density * ratio).sum() * STEP**2)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_lemmas(posterior, correlation):
    block = CorrelatedNormal(size=2, correlation=correlation) if correlation else Normal(size=2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    noise = torch.tensor(list(itertools.product(nodes, nodes)))[:, None].expand(-1, SIZE, -1)
    weight = torch.tensor(np.outer(weights, weights).reshape(-1)) / (2 * math.pi)
    space = Space({"z": block})
    stacked = {"z": posterior.expand(len(noise), -1, -1)}
    out = Output(stacked, space.prior(posterior), space.sample(stacked, {"z": noise}), {})
    aggregate = batch_aggregate(space, out.posterior, out.sample, "stratified", SIZE)
    values = {name: float(value @ weight) for name, value in divergences(out, space, aggregate).items()}
    alone = (weight @ leaf_information(out, space, "stratified", SIZE)).tolist()

    each = on_the_grid(posterior, correlation)
    whole, first, second = each.mean(0), each.sum(2) * STEP, each.sum(1) * STEP
    # q(z_1 | z_0, x) and q(z_1 | z_0)
    given = each / np.maximum(first[:, :, None], 1e-300)
    without = whole / np.maximum(first.mean(0)[:, None], 1e-300)
    conditional = sum(mean_log(each[n], given[n], without) for n in range(SIZE)) / SIZE
    assert values["mi"] - alone[0] == pytest.approx(conditional, abs=1e-5)

    products = first[:, :, None] * second[:, None, :]
    inner = sum(mean_log(each[n], each[n], products[n]) for n in range(SIZE)) / SIZE
    outer = mean_log(whole, whole, first.mean(0)[:, None] * second.mean(0)[None])
    assert values["mi"] - sum(alone) == pytest.approx(inner - outer, abs=1e-5)
    assert values["tc"] == pytest.approx(outer, abs=1e-5)
    assert inner == pytest.approx(block.extra_kl, abs=1e-5)


def test_groups_of_correlated_variables_are_estimated_together():
    """Three variables, two in a group: the mixture of bivariate Gaussians, by torch."""
    space = Space({"z": CorrelatedNormal(size=3, correlation=0.7)}, ((0, 2), (1,)))
    given = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    value = space.sample({"z": given}, {"z": torch.randn(4, 3, dtype=torch.float64)})
    made = exact_aggregate(space, {"z": given}, value).levels
    matrix = torch.full((3, 3), 0.7).double() + 0.3 * torch.eye(3)
    deviation = (given[:, 3:] / 2).exp()
    for level, place, group in ((0, 0, [0, 1, 2]), (1, 0, [0, 2]), (1, 1, [1]), (2, 2, [2])):
        covariance = deviation[:, group, None] * matrix[group][:, group] * deviation[:, None, group]
        family = torch.distributions.MultivariateNormal(given[:, group], covariance)
        expected = family.log_prob(value["z"][:, None, group]).logsumexp(-1) - math.log(4)
        torch.testing.assert_close(made[level][:, place], expected)
