"""Latent blocks keep their contract; spaces join and split without loss."""

import pytest
import torch
from torch import distributions

from unbraid.errors import UsageError
from unbraid.latents import Normal, Space, block


@pytest.fixture(params=list(block))
def made(request):
    return block[request.param].make()


def parameters_of(made, rows, seed=0):
    return torch.randn(rows, made.parameter_count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw(made, rows):
    need = made.need(rows)
    return (
        torch.randn(need.shape, dtype=torch.float64)
        if need.kind == "normal"
        else torch.rand(need.shape, dtype=torch.float64)
    )


def test_shapes(made):
    parameters = parameters_of(made, 6)
    value = made.sample(parameters, draw(made, 6))
    assert value.shape == made.center(parameters).shape == (6, made.width)
    assert made.log_density(parameters, value).shape == (6, made.leaves)
    assert made.kl(parameters, made.standard(parameters)).shape == (6, made.leaves)


def test_pairwise_is_every_pair(made):
    parameters = parameters_of(made, 4)
    value = made.sample(parameters, draw(made, 4))
    pairs = made.pairwise(parameters, value)
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(pairs[i, :, j], made.log_density(parameters[j], value[i]))


def test_kl_is_zero_against_itself_and_positive_otherwise(made):
    parameters = parameters_of(made, 5)
    torch.testing.assert_close(made.kl(parameters, parameters), torch.zeros(5, made.leaves, dtype=torch.float64))
    assert (made.kl(parameters, made.standard(parameters)) > 0).all()


def test_kl_equals_its_monte_carlo_mean(made):
    parameters, prior = parameters_of(made, 1), made.standard(parameters_of(made, 1))
    many = parameters.expand(200_000, -1)
    value = made.sample(many, draw(made, 200_000))
    difference = made.log_density(many, value) - made.log_density(prior, value)
    error = difference.std(0) / len(difference) ** 0.5
    assert ((difference.mean(0) - made.kl(parameters, prior)[0]).abs() < 5 * error).all()


def test_normal_equals_torch_distributions():
    made, parameters = Normal(size=3), torch.randn(4, 6, dtype=torch.float64)
    mean, log_variance = parameters.chunk(2, -1)
    family, standard = distributions.Normal(mean, (log_variance / 2).exp()), distributions.Normal(0.0, 1.0)
    value = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(made.log_density(parameters, value), family.log_prob(value))
    torch.testing.assert_close(
        made.kl(parameters, made.standard(parameters)), distributions.kl_divergence(family, standard)
    )


@pytest.mark.parametrize("log_variance", [-100.0, -300.0])
def test_a_collapsed_posterior_still_has_a_density(log_variance):
    made = Normal(size=1)
    parameters = torch.tensor([[0.7, log_variance]])
    value = made.sample(parameters, torch.tensor([[1.3]]))
    assert made.log_density(parameters, value).isfinite().all()
    assert made.pairwise(parameters, value).isfinite().all()


def test_space_joins_blocks_in_order():
    space = Space({"a": Normal(size=2), "b": Normal(size=3)})
    assert space.outputs == {"a.mean": 2, "a.log_variance": 2, "b.mean": 3, "b.log_variance": 3}
    flat = torch.randn(4, 10)
    parts = space.split(flat)
    assert torch.equal(parts["b"], flat[:, 4:])
    code = space.center(parts)
    assert torch.equal(space.join(space.unjoin(code)), code)
    assert space.leaf_names() == ["a0", "a1", "b0", "b1", "b2"]


def test_groups_must_cover_every_variable_once():
    with pytest.raises(UsageError, match="each of the 3 latent variables exactly once"):
        Space({"z": Normal(size=3)}, ((0, 1), (1, 2)))


def test_space_from_config():
    space = Space.from_config({"z": {"kind": "normal", "size": 4}})
    assert space.width == 4
    with pytest.raises(UsageError, match="Unknown latent block 'norma'"):
        Space.from_config({"z": {"kind": "norma"}})
