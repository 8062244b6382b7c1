"""Each term of the decomposition against its definition by quadrature, on a 2-D model with enumerable data."""

import math

import numpy as np
import pytest
import torch

from tests.support.posteriors import random_posterior, space_of
from unbraid.density import batch_aggregate, exact_aggregate
from unbraid.objectives import closed_form_kl, divergences
from unbraid.types import Output

SIZE = 5


@pytest.fixture
def posterior():
    return random_posterior(SIZE, 2, seed=3)


def by_definition(posterior):
    """MI, TC and dimension-wise KL as integrals over the plane, on a fine grid, in numpy alone."""
    mean, log_variance = (part.numpy() for part in posterior.chunk(2, dim=-1))
    deviation = np.exp(log_variance / 2)
    grid = np.linspace(-12, 12, 2401)
    step = grid[1] - grid[0]
    axis = np.exp(-0.5 * ((grid[None, None] - mean[..., None]) / deviation[..., None]) ** 2)
    axis /= deviation[..., None] * math.sqrt(2 * math.pi)  # [n, 2, grid]
    joint = np.einsum("nx,ny->xy", axis[:, 0], axis[:, 1]) / SIZE
    marginals = axis.mean(0)  # [2, grid]
    prior = np.exp(-0.5 * grid**2) / math.sqrt(2 * math.pi)

    def expected_log(density, value):
        return np.sum(density * np.log(np.maximum(value, 1e-300))) * step**density.ndim

    own = sum(expected_log(axis[n, d], axis[n, d]) for n in range(SIZE) for d in range(2)) / SIZE
    aggregate = expected_log(joint, joint)
    separate = sum(expected_log(marginals[d], marginals[d]) for d in range(2))
    standard = sum(expected_log(marginals[d], prior) for d in range(2))
    return {"mi": own - aggregate, "tc": aggregate - separate, "dimension": separate - standard}


def output_at(posterior, noise):
    """The output of a batch of all data; leading axes of `noise` are kept."""
    space = space_of(2)
    parameters = {"z": posterior.expand(*noise.shape[:-2], *posterior.shape)}
    return Output(parameters, space.prior(posterior), space.sample(parameters, {"z": noise}), {})


def terms_at(posterior, noise, estimator):
    space, out = space_of(2), output_at(posterior, noise)
    if estimator == "exact":
        aggregate = exact_aggregate(space, out.posterior, out.sample)
    else:
        aggregate = batch_aggregate(space, out.posterior, out.sample, estimator, SIZE)
    return divergences(out, space, aggregate)


@pytest.mark.parametrize("estimator", ["exact", "stratified"])
def test_terms_equal_their_definitions_and_sum_to_the_closed_form(posterior, estimator):
    """Gauss-Hermite nodes take the place of the noise, so the expectation is exact and not sampled."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    pair = torch.tensor(np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 1, 2)).expand(-1, SIZE, -1)
    weight = torch.tensor(np.outer(weights, weights).reshape(-1)) / (2 * math.pi)
    values = {name: float(value @ weight) for name, value in terms_at(posterior, pair, estimator).items()}
    for name, value in by_definition(posterior).items():
        assert values[name] == pytest.approx(value, abs=1e-5)
    closed = float(closed_form_kl(output_at(posterior, torch.zeros(SIZE, 2, dtype=torch.float64)), space_of(2)))
    assert sum(values.values()) == pytest.approx(closed, abs=1e-5)


def test_sampled_terms_converge_to_the_definitions(posterior):
    noise = torch.randn(40_000, SIZE, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name, value in terms_at(posterior, noise, "stratified").items():
        error = float(value.std() / math.sqrt(len(value)))
        assert error < 0.01
        assert float(value.mean()) == pytest.approx(by_definition(posterior)[name], abs=4 * error)


def test_levels_of_groups_add_up_to_the_flat_total_correlation():
    posterior = random_posterior(8, 4, seed=5)
    noise = torch.randn(8, 4, dtype=torch.float64)
    flat, nested = space_of(4), space_of(4, ((0, 3), (1, 2)))
    deep = space_of(4, (((0, 3), (1,)), (2,)))
    results = []
    for space in (flat, nested, deep):
        sample = space.sample({"z": posterior}, {"z": noise})
        out = Output({"z": posterior}, space.prior(posterior), sample, {})
        results.append(divergences(out, space, exact_aggregate(space, out.posterior, out.sample)))
    assert list(results[1]) == ["mi", "tc_between", "tc_within", "dimension"]
    assert list(results[2]) == ["mi", "tc_1", "tc_2", "tc_3", "dimension"]
    for made in results[1:]:
        total = sum(value for name, value in made.items() if name.startswith("tc"))
        torch.testing.assert_close(total, results[0]["tc"])


def test_gradient_of_the_whole_decomposition_agrees_with_finite_differences(posterior):
    noise = torch.randn(SIZE, 2, dtype=torch.float64)

    def loss(parameters):
        values = terms_at(parameters, noise, "stratified")
        return values["mi"] + 6 * values["tc"] + 2 * values["dimension"]

    assert torch.autograd.gradcheck(loss, (posterior.requires_grad_(),))
