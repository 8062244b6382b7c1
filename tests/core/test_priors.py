"""Learned priors against other libraries' distributions, integrals and finite differences; correlated noise, too."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import distributions

from tests.support.messages import naming
from tests.support.priors import made_space, random, with_learned
from unbraid.config import Choice, Config, Training
from unbraid.errors import UsageError
from unbraid.latents import (
    LEARNED_PRIOR,
    Concrete,
    ConditionalPrior,
    CorrelatedNormal,
    FlowPrior,
    Normal,
    Space,
    parse_latents,
    prior,
)
from unbraid.latents.covariance_prior import inverse_triangular

CHAIN = {"c": Concrete(classes=2, size=2, temperature=0.7), "z": Normal(size=1), "d": Concrete(classes=2)}


# covariance


def test_every_part_of_a_gaussian_has_its_part_of_the_covariance():
    space = made_space("covariance", {"a": Normal(size=2), "c": Concrete(classes=3), "z": Normal(size=2)})
    own = with_learned(space, lead=(3,), scale=0.7)
    covariance = space.learned.covariance(own)
    drawn = {"a": random(3, 5, 2, seed=1), "z": random(3, 5, 2, seed=2)}
    values = drawn | {"c": random(3, 5, 3, seed=3).log_softmax(-1)}
    flat = torch.cat([drawn["a"], drawn["z"]], -1)
    for count in (1, 2, 3, 4):
        for group in itertools.combinations(range(4), count):
            made = space.learned.joint_density(own, values, group)
            for m in range(3):
                part = covariance[m][list(group)][:, list(group)]
                expected = multivariate_normal(np.zeros(count), part.numpy()).logpdf(flat[m][:, list(group)].numpy())
                np.testing.assert_allclose(made[m], np.reshape(expected, -1), atol=1e-9)
    alone = space.learned.leaf_densities(own, values)
    assert alone.shape == (3, 5, 5)
    torch.testing.assert_close(alone[..., 2:3], space.blocks["c"].log_density(own["c"], values["c"]))
    torch.testing.assert_close(alone[..., 3], space.learned.joint_density(own, values, [2]))


@pytest.mark.parametrize("correlated", [False, True])
def test_closed_kl_to_a_covariance_equals_torchs(correlated):
    blocks = {"a": Normal(size=2), "z": CorrelatedNormal(size=3, correlation=0.6) if correlated else Normal(size=3)}
    space = made_space("covariance", blocks)
    own = with_learned(space, scale=0.7)
    posterior = {"a": random(4, 4, seed=1), "z": random(4, 6, seed=2)}
    values = {"a": random(4, 2), "z": random(4, 3)}
    made = space.joint_kl(posterior, own, values)
    mean, log_variance = (torch.cat(s, -1) for s in zip(*(p.chunk(2, -1) for p in posterior.values()), strict=True))
    inner = torch.eye(3) * 0.4 + 0.6 if correlated else torch.eye(3)
    spread = (log_variance / 2).exp()
    noise = spread[:, :, None] * torch.block_diag(torch.eye(2), inner).double() * spread[:, None]
    family = distributions.MultivariateNormal
    to = family(torch.zeros(5, dtype=torch.float64), space.learned.covariance(own))
    torch.testing.assert_close(made, distributions.kl_divergence(family(mean, noise), to))
    alone = distributions.Normal(0.0, space.learned.covariance(own).diagonal().sqrt())
    each = distributions.kl_divergence(distributions.Normal(mean, spread), alone)
    torch.testing.assert_close(space.kl(posterior, own, values), each)


def test_inverse_of_a_triangle():
    factor = random(2, 4, 4).tril(-1) + torch.diag_embed(random(2, 4, seed=1).exp())
    torch.testing.assert_close(inverse_triangular(factor) @ factor, torch.eye(4).double().expand(2, 4, 4))


def test_draws_have_the_learned_covariance():
    space = made_space("covariance", {"z": Normal(size=3)})
    own = with_learned(space, scale=0.5)
    drawn = space.sample_prior(own, {"z": random(100_000, 3)})["z"]
    torch.testing.assert_close(drawn.T.cov(), space.learned.covariance(own), atol=0.03, rtol=0.03)


# conditional class probabilities


def two_classes(u):
    """Log coordinates of a variable with two classes, whose density is one of their difference u."""
    return torch.stack([-torch.nn.functional.softplus(-u), -torch.nn.functional.softplus(u)], -1)


EDGES = torch.linspace(-60, 60, 3001, dtype=torch.float64)
STEP = float(EDGES[1] - EDGES[0])
POINTS = (EDGES[:-1] + EDGES[1:]) / 2  # no cell holds 0, where the class changes


def test_marginals_of_a_chain_are_integrals_of_its_joint_density():
    """Three variables of two classes each, the middle one or the first two integrated out."""
    space = made_space("conditional", CHAIN)
    own, learned = with_learned(space, scale=1.5), space.learned
    assert isinstance(learned, ConditionalPrior)
    last, first = two_classes(torch.tensor([0.8, -2.0]).double()), two_classes(torch.tensor([-0.4, 1.1]).double())

    def at(u_first, u_middle, value_last):
        both = torch.cat([two_classes(u_first), two_classes(u_middle)], -1)
        return {"c": both, "z": both[..., :1], "d": value_last.expand(*both.shape[:-1], 2)}

    for row in range(2):
        point = torch.full_like(POINTS, float(first[row, 0] - first[row, 1]))
        values = at(point, POINTS, last[row])
        whole = learned.joint_density(own, values, [0, 1, 2]).exp().sum() * STEP
        torch.testing.assert_close(learned.joint_density(own, values, [0, 2])[0].exp(), whole, rtol=1e-5, atol=0)
        part = learned.joint_density(own, at(POINTS, point, last[row]), [0, 2]).exp().sum() * STEP
        torch.testing.assert_close(learned.joint_density(own, values, [2])[0].exp(), part, rtol=1e-5, atol=0)
        chain = learned.marginal_densities(own, values)
        torch.testing.assert_close(chain[..., 2], learned.joint_density(own, values, [2]))
    total = learned.joint_density(own, at(POINTS, POINTS, last[0]), [1]).exp().sum() * STEP
    assert float(total) == pytest.approx(1, abs=1e-5)


def test_draws_of_a_chain_have_its_probabilities():
    blocks = {"c": Concrete(classes=3), "d": Concrete(classes=4)}
    space = made_space("conditional", blocks)
    own, count = with_learned(space), 100_000
    uniform = {n: torch.rand(count, b.width, generator=torch.Generator().manual_seed(1)) for n, b in blocks.items()}
    drawn = space.sample_prior(own, {name: value.double() for name, value in uniform.items()})
    first, second = (drawn[name].argmax(-1) for name in blocks)
    tables = [table.exp() for table in space.learned.tables(own)]
    for k in range(3):
        assert float((first == k).double().mean()) == pytest.approx(float(tables[0][0, k]), abs=0.005)
        seen = torch.bincount(second[first == k], minlength=4) / (first == k).sum()
        torch.testing.assert_close(seen.double(), tables[1][k], atol=0.02, rtol=0)
    center = space.center_prior(own)
    torch.testing.assert_close(center[0, 3:], (tables[0] @ tables[1])[0])


# flows


@pytest.mark.parametrize("layers", ["planar", "spline"])
def test_a_flow_is_a_density_and_has_an_inverse(layers):
    if layers == "spline":
        pytest.importorskip("zuko")
    space = made_space("flow", {"z": Normal(size=3)}, depth=4, layers=layers)
    own = with_learned(space, lead=(2,), scale=1.5 if layers == "planar" else 0.5)
    grid = torch.linspace(-15, 15, 30_001, dtype=torch.float64)
    values = grid[:, None].expand(2, -1, 3)
    density = space.learned.marginal_densities(own, {"z": values}).exp()
    assert torch.allclose(density.sum(-2) * (grid[1] - grid[0]), torch.ones(2, 3).double(), atol=1e-5)
    some, h = values[:, 10_000:20_000:200] + 1e-4, 1e-6
    base, log_slope = space.learned.to_base(own, some)
    slope = (space.learned.to_base(own, some + h)[0] - space.learned.to_base(own, some - h)[0]) / (2 * h)
    torch.testing.assert_close(slope.log(), log_slope, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(space.learned.from_base(own, base), some, atol=1e-8, rtol=0)
    middle = {"z": space.center_prior(own)}
    assert float(space.learned.to_base(own, middle["z"])[0].abs().max()) < 1e-8


def test_a_flow_without_zuko_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko.transforms", None)
    FlowPrior({"z": Normal(size=2)})
    with pytest.raises(UsageError, match=r"unbraid\[flows\]"):
        FlowPrior({"z": Normal(size=2)}, layers="spline")


# all of them


@pytest.mark.parametrize("kind", list(prior))
def test_first_parameters_are_the_standard_prior_and_ask_for_what_they_cover(kind):
    blocks = {"z": Normal(size=3), "c": Concrete(classes=3), "d": Concrete(classes=4)}
    space = made_space(kind, blocks, ((0, 3), (1, 2, 4)))
    first = torch.cat([parameter.flatten() for parameter in space.learned.initial_parameters().values()])
    own = {**space.prior(random(1)), LEARNED_PRIOR: first.double()}
    noise = {n: torch.rand(6, b.width, generator=torch.Generator().manual_seed(2)).double() for n, b in blocks.items()}
    values = Space(blocks).sample_prior(own, noise)
    close = {"atol": 0.2 if kind == "flow" else 1e-9, "rtol": 0}
    for made in space.prior_levels(own, values):
        torch.testing.assert_close(made, Space(blocks).log_density(own, values).sum(-1), **close)
    close["atol"] = 0.1 if kind == "flow" else 1e-9
    drawn = space.sample_prior(own, noise)
    assert all(torch.allclose(drawn[name], values[name], **close) for name in blocks)
    with pytest.raises(UsageError, match=naming("prior", 0)):
        prior[kind].make({"c": Normal(size=2)} if kind == "conditional" else {"c": Concrete(classes=2)})


def test_a_config_stores_a_learned_prior_and_only_that():
    one = Choice("x")
    plain = Config(one, "vae", one, one, one, one, {"z": {"kind": "normal"}}, Training())
    assert "prior" not in plain.as_dict()
    learned = replace(plain, prior=Choice("flow", {"depth": 3}))
    again = Config.from_yaml(learned.to_yaml())
    assert again == learned
    assert again.run_id != plain.run_id


# correlated noise


def test_correlated_noise_has_its_density_and_its_constant():
    block = CorrelatedNormal(size=10)
    assert block.extra_kl == pytest.approx(9.257, abs=5e-4)
    block = CorrelatedNormal(size=4, correlation=0.7)
    parameters, matrix = random(6, 8), torch.full((4, 4), 0.7).double() + 0.3 * torch.eye(4)
    mean, deviation = parameters[:, :4], (parameters[:, 4:] / 2).exp()
    value = block.sample(parameters, random(6, 4, seed=1))
    for group in ([0, 2], [1, 2, 3], [0, 1, 2, 3]):
        covariance = deviation[:, group, None] * matrix[group][:, group] * deviation[:, None, group]
        expected = distributions.MultivariateNormal(mean[:, group], covariance).log_prob(value[:, group])
        alone = block.log_density(parameters, value)[:, group].sum(-1)
        torch.testing.assert_close(alone + block.coupling(parameters, value, group), expected)
    many = block.sample(torch.zeros(1, 8).double(), random(100_000, 4, seed=2))
    torch.testing.assert_close(many.T.cov(), matrix, atol=0.01, rtol=0)


def test_kl_with_correlated_noise_equals_its_monte_carlo_mean():
    space = Space({"z": CorrelatedNormal(size=3, correlation=0.8), "y": Normal(size=1)})
    posterior = {"z": random(1, 6).expand(100_000, -1), "y": random(1, 2).expand(100_000, -1)}
    values = space.sample(posterior, {"z": random(100_000, 3, seed=1), "y": random(100_000, 1, seed=2)})
    standard = space.prior(random(1))
    ratio = space.joint_density(posterior, values) - space.prior_levels(standard, values)[0]
    error = float(ratio.std() / len(ratio) ** 0.5)
    assert float(ratio.mean()) == pytest.approx(float(space.joint_kl(posterior, standard, values)[0]), abs=5 * error)
    drawn = space.sample_prior(standard, {"z": random(100_000, 3), "y": random(100_000, 1)})["z"]
    assert float((drawn.T.cov() - torch.eye(3)).abs().max()) < 0.03


def test_correlated_latents_from_what_was_typed():
    made = parse_latents({"latents": "correlated-normal:5", "latents.z.correlation": 0.5})
    assert made == {"z": {"kind": "correlated-normal", "size": 5, "correlation": 0.5}}
    assert list(parse_latents({"latents": "correlated-normal:5+normal:2"})) == ["z_0", "z_1"]
    with pytest.raises(UsageError, match=naming("correlation", 0, 1)):
        Space.from_config(parse_latents({"latents": "correlated-normal:5", "latents.z.correlation": 1.0}))
