"""Latent blocks equal torch's distributions; spaces join and split without loss."""

import pytest
import torch
from torch import distributions
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.latents import Bernoulli, Concrete, Normal, Space, block, parse_latents


def draw_parameters(made, rows, seed=0):
    given = torch.randn(rows, made.parameter_count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.complete(given, None)


def draw(made, rows):
    need = made.need(rows)
    return (
        torch.randn(need.shape, dtype=torch.float64)
        if need.kind == "normal"
        else torch.rand(need.shape, dtype=torch.float64)
    )


def test_normal_equals_torch_distributions():
    made, parameters = Normal(size=3), torch.randn(4, 6, dtype=torch.float64)
    mean, log_variance = parameters.chunk(2, -1)
    family, standard = distributions.Normal(mean, (log_variance / 2).exp()), distributions.Normal(0.0, 1.0)
    value = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(made.log_density(parameters, value), family.log_prob(value))
    kl = made.kl(parameters, made.standard(parameters), value)
    torch.testing.assert_close(kl, distributions.kl_divergence(family, standard))


def test_concrete_equals_torch_distributions():
    made = Concrete(classes=4, size=3, temperature=0.5)
    logits = torch.randn(5, 12, dtype=torch.float64)
    parameters = made.complete(logits, None)
    uniform = torch.rand(5, 12, dtype=torch.float64)
    value = made.sample(parameters, uniform)
    family = ExpRelaxedCategorical(torch.tensor(0.5, dtype=torch.float64), logits=logits.view(5, 3, 4))
    torch.testing.assert_close(made.log_density(parameters, value), family.log_prob(value.view(5, 3, 4)))
    gumbel = -(-uniform.log()).log()
    torch.testing.assert_close(made.to_code(value).view(5, 3, 4), ((logits + gumbel).view(5, 3, 4) / 0.5).softmax(-1))
    torch.testing.assert_close(made.center(parameters).view(5, 3, 4), logits.view(5, 3, 4).softmax(-1))


def test_bernoulli_equals_torch_distributions():
    made = Bernoulli(size=3, temperature=0.7)
    logits = torch.randn(5, 3, dtype=torch.float64)
    parameters = made.complete(logits, None)
    value = made.sample(parameters, torch.rand(5, 3, dtype=torch.float64))
    family = LogitRelaxedBernoulli(torch.tensor(0.7, dtype=torch.float64), logits=logits)
    torch.testing.assert_close(made.log_density(parameters, value), family.log_prob(value))


@pytest.mark.parametrize("kind", ["concrete", "bernoulli"])
def test_straight_through_shows_a_vertex_and_keeps_the_gradient(kind):
    soft, hard = (block[kind].make(straight_through=flag) for flag in (False, True))
    logits = draw_parameters(soft, 6)[..., :-1].requires_grad_()
    noise = draw(soft, 6)
    code = hard.to_code(hard.sample(hard.complete(logits, None), noise))
    assert ((code.detach() - code.detach().round()).abs() < 1e-12).all()
    weight = torch.randn_like(code)
    (gradient,) = torch.autograd.grad((code * weight).sum(), logits)
    relaxed = soft.to_code(soft.sample(soft.complete(logits, None), noise))
    torch.testing.assert_close(gradient, torch.autograd.grad((relaxed * weight).sum(), logits)[0])


def test_a_temperature_falls_geometrically_and_stays():
    made = Concrete(classes=3, temperature=2.0, final=0.5, anneal=100)
    assert set(made.needs("c", 4)) == {"c", "c.step"}
    logits = torch.zeros(4, 3)
    found = [float(made.complete(logits, torch.tensor(float(step)))[0, -1].exp()) for step in (0, 50, 100, 1000)]
    assert found == pytest.approx([2.0, 1.0, 0.5, 0.5])
    assert float(made.complete(logits, None)[0, -1].exp()) == pytest.approx(0.5)
    posterior = made.complete(logits, torch.tensor(0.0))
    assert float(made.prior_of(posterior)[0, -1].exp()) == pytest.approx(2.0)
    with pytest.raises(UsageError, match="anneal"):
        Concrete(final=0.5)
    with pytest.raises(UsageError, match=naming("temperature", 0)):
        Bernoulli(temperature=0.0)


def test_certain_classes_have_finite_densities():
    made = Concrete(classes=3, temperature=0.1)
    parameters = made.complete(torch.tensor([[300.0, 0.0, -300.0]]), None)
    value = made.sample(parameters, torch.tensor([[0.5, 0.5, 0.5]]))
    assert made.log_density(parameters, value).isfinite().all()
    seen_again = made.from_code(made.to_code(value))
    assert made.log_density(parameters, seen_again).isfinite().all()


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
    with pytest.raises(UsageError, match=naming("groups", 3)):
        Space({"z": Normal(size=3)}, ((0, 1), (1, 2)))


def test_space_from_config():
    space = Space.from_config({"z": {"kind": "normal", "size": 4}})
    assert space.width == 4
    with pytest.raises(UsageError, match=naming("norma", "normal")):
        Space.from_config({"z": {"kind": "norma"}})


def test_groups_by_block_and_by_name():
    latents = {"z": {"kind": "normal", "size": 3}, "c": {"kind": "concrete", "classes": 4}}
    assert Space.from_config(latents, "blocks").tree == ((0, 1, 2), (3,))
    assert Space.from_config(latents, [["z0", ["z1", "c"]], ["z2"]]).tree == ((0, (1, 3)), (2,))
    with pytest.raises(UsageError, match=naming("zz2", "z2")):
        Space.from_config(latents, [["z0", "z1", "zz2"], ["c"]])
    with pytest.raises(UsageError, match="groups"):
        Space.from_config(latents, "block")


def test_blocks_from_what_was_typed():
    assert parse_latents({}) == {"z": {"kind": "normal", "size": 10}}
    assert parse_latents({"z": 4})["z"]["size"] == 4
    made = parse_latents({"latents": "normal:5+concrete:7+concrete:3+bernoulli:2", "latents.c_1.temperature": 0.5})
    assert list(made) == ["z", "c_0", "c_1", "b"]
    assert (made["z"]["size"], made["c_0"]["classes"], made["b"]["size"]) == (5, 7, 2)
    assert (made["c_0"]["temperature"], made["c_1"]["temperature"]) == (0.66, 0.5)
    assert parse_latents({"latents": "normal:5+concrete:7", "z": 2})["z"]["size"] == 2


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"latents": "normal:5+concret:3"}, ["concret", "concrete"]),
        ({"latents": "normal:x"}, ["normal:x"]),
        ({"latents": "concrete:3", "z": 4}, ["z", "c"]),
        ({"latents.c.temperature": 0.5}, ["c", "z"]),
        ({"latents": 3}, ["latents", "+"]),
    ],
)
def test_what_cannot_be_a_space_is_refused(given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        parse_latents(given)
