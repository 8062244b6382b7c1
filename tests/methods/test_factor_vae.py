"""FactorVAE: its permutations, its two losses, who gets which gradient, and a total correlation that is known."""

import math

import pytest
import torch

from tests.methods.helpers import bound, made_context, made_output, normal_space
from tests.support.gaussians import correlated, truth
from tests.support.messages import naming
from unbraid import noise
from unbraid.config import Choice
from unbraid.data import load
from unbraid.density.density_ratio import Discriminator
from unbraid.errors import UsageError
from unbraid.latents import Bernoulli, Concrete, Normal, Space
from unbraid.methods.factor_vae import ORDER, permute_variables
from unbraid.objectives import bind
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare
from unbraid.types import Batch, Output

SMALL = {"width": 16, "depth": 2}


def test_permutations_keep_each_variable_and_break_their_company():
    space = normal_space(3)
    codes = torch.arange(40.0)[None, :, None] + torch.tensor([0.0, 100.0, 200.0])
    codes = codes.expand(2, -1, -1)
    made = permute_variables(codes, noise.uniform(noise.seed_tensor(0, 1), 0, "order", (40, 3)), space)
    assert torch.equal(made.sort(-2).values, codes)
    offsets = made - torch.tensor([0.0, 100.0, 200.0])
    assert int((offsets[..., 0] == offsets[..., 1]).sum()) < 20
    assert not torch.equal(made[0], made[1])


def test_coordinates_of_one_category_stay_together():
    space = Space({"c": Concrete(classes=3, size=2), "z": Normal(size=1), "b": Bernoulli(size=1)})
    rows = torch.arange(30.0)[None, :, None].expand(1, -1, space.width)
    made = permute_variables(rows, torch.rand(1, 30, space.leaves), space)[0]
    assert torch.equal(made[:, 0], made[:, 1]) and torch.equal(made[:, 1], made[:, 2])
    assert torch.equal(made[:, 3], made[:, 5])
    assert len({tuple(column.tolist()) for column in made.T}) == space.leaves


def test_losses_against_their_definitions():
    """By hand, one row at a time: joint codes are the first half, shuffled ones come from the second."""
    space, gamma = normal_space(3), torch.tensor([35.0, 6.0])
    factor = bind("factor-vae", {"gamma": gamma, **SMALL})
    network = factor.networks(space)["discriminator"].double().requires_grad_(False)
    out, batch = made_output(space, rows=7)
    context = made_context(space, factor, rows=7, apply=lambda name, codes: {"discriminator": network}[name](codes))
    model, critic = (player.loss(out, batch, context) for player in factor.players())
    likelihood, kl = bound(out, batch)
    for m in range(2):
        z = out.sample["z"][m]
        ratios = [float(network(row)[0] - network(row)[1]) for row in z]
        assert float(model["tc/ratio"].value[m]) == pytest.approx(sum(ratios) / 7)
        total = float(likelihood[m] + kl[m]) + float(gamma[m]) * sum(ratios) / 7
        assert float(model.loss[m]) == pytest.approx(total)
        order = context.noise[ORDER][m].argsort(0)
        rows = [[z[3 + int(order[i, d]), d] for d in range(3)] for i in range(4)]
        joint = [-float(network(row).log_softmax(-1)[0]) for row in z[:3]]
        apart = [-float(network(torch.stack(row)).log_softmax(-1)[1]) for row in rows]
        assert float(critic.loss[m]) == pytest.approx(0.5 * sum(joint) / 3 + 0.5 * sum(apart) / 4)


def test_the_discriminator_is_kim2018s():
    factor = bind("factor-vae", {})
    shapes = [tuple(p.shape) for p in factor.networks(normal_space(10))["discriminator"].parameters() if p.ndim == 2]
    assert shapes == [(1000, 10), *[(1000, 1000)] * 5, (2, 1000)]
    model, critic = factor.players()
    assert model.owns == ("model.",)
    assert critic.optimizer == {"lr": 1e-4, "betas": (0.5, 0.9)}


def test_each_player_moves_its_own_parameters_by_its_own_loss(monkeypatch):
    data = load("sprites-small", {})
    given = {"network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,), "z": 3, "batch": 8, **SMALL}
    state = prepare(configure("factor-vae", Choice("sprites-small", {}), data, given), data)
    for name in ("model", "discriminator"):
        before = {n: p.detach().clone() for n, p in state.group.parameters.items()}
        other = next(player for player in state.players if player.player.name != name)
        with monkeypatch.context() as patch:
            patch.setattr(other, "step", lambda *_, **__: None)
            state.advance()
        moved = {n.partition(".")[0] for n, p in state.group.parameters.items() if not torch.equal(before[n], p)}
        assert moved == {"model": {"model"}, "discriminator": {"objective"}}[name]


def test_the_discriminators_loss_does_not_reach_the_encoder():
    space, factor = normal_space(3), bind("factor-vae", SMALL)
    network = factor.networks(space)["discriminator"].double()
    posterior = made_output(space)[0].posterior["z"].requires_grad_()
    out, batch = made_output(space, posterior={"z": posterior})
    context = made_context(space, factor, apply=lambda _, codes: network(codes))
    model, critic = (player.loss(out, batch, context) for player in factor.players())
    weights = list(network.parameters())
    assert torch.autograd.grad(critic.loss.sum(), posterior, allow_unused=True, retain_graph=True) == (None,)
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(critic.loss.sum(), weights))
    assert float(torch.autograd.grad(model["tc/ratio"].value.sum(), posterior)[0].abs().sum()) > 0


def trained_ratio(rho, dimensions, steps, batch=256, lr=3e-3, **size):
    """The model's term on fresh codes, once the discriminator's own loss has trained it on others."""
    space, factor = normal_space(dimensions), bind("factor-vae", size)
    network = factor.networks(space)["discriminator"]
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, betas=(0.5, 0.9))
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def made(rows, step):
        codes, pixels = correlated(rows, rho, dimensions, seed=step)[None], torch.zeros(1, rows, 1)
        posterior = {"z": torch.zeros(1, rows, 2 * dimensions)}
        out = Output(posterior, space.prior(codes), {"z": codes}, {"x": {"": pixels}})
        context = made_context(space, factor, 1, rows, seed=step, apply=lambda _, codes: network(codes))
        return out, Batch({"x": pixels}, torch.arange(rows)[None]), context

    for step in range(steps):
        loss = factor.players()[1].loss(*made(batch, step)).loss.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    with torch.no_grad():
        return float(factor.players()[0].loss(*made(20_000, steps))["tc/ratio"].value)


@pytest.mark.parametrize("rho", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_the_term_tends_to_the_total_correlation_of_gaussians(rho):
    found = trained_ratio(rho, dimensions=4, steps=400, width=64, depth=2)
    assert found == pytest.approx(truth(rho, 4), abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
def test_the_term_is_within_a_tenth_on_ten_dimensions(rho):
    """tests/oracles.md, row 5."""
    found = trained_ratio(rho, dimensions=10, steps=3000, batch=1024, width=128, depth=2)
    assert found == pytest.approx(truth(rho), rel=0.1)


def test_guessing_costs_log_2():
    space, factor = normal_space(2), bind("factor-vae", SMALL)
    out, batch = made_output(space)
    context = made_context(space, factor, apply=lambda _, codes: torch.zeros(*codes.shape[:-1], 2))
    terms = factor.players()[1].loss(out, batch, context)
    torch.testing.assert_close(terms["cross_entropy"].value, torch.full((2,), math.log(2), dtype=torch.float64))


def test_half_precision_logits_do_not_reach_the_terms():
    space, factor = normal_space(2), bind("factor-vae", SMALL)
    out, batch = made_output(space)
    network = Discriminator(2, **SMALL).bfloat16()
    context = made_context(space, factor, apply=lambda _, codes: network(codes.bfloat16()))
    assert factor.players()[0].loss(out, batch, context)["tc/ratio"].value.dtype == torch.float64


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match=naming(4, 3)):
        bind("factor-vae", {}).needs(3, normal_space(2))
    with pytest.raises(UsageError, match=naming("layer", 1)):
        bind("factor-vae", {"depth": 0})
