"""Quantised latents: the nearest value, whose gradient goes where, weight decay, and what has no density."""

import pytest
import torch

from tests.methods.helpers import PIXELS, made_context
from tests.support.messages import naming
from unbraid.config import Choice
from unbraid.data import load
from unbraid.errors import UsageError
from unbraid.latents import Quantised, Space
from unbraid.methods.qlae import Codebook
from unbraid.metrics import Evaluation, evaluate
from unbraid.objectives import bind
from unbraid.report.traversals import compute_coordinate_kl, traverse
from unbraid.training.adam import StackedAdam
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare
from unbraid.types import Batch, Output

SMALL = {"z": 3, "batch": 8, "steps": 4, "network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,)}


def state_of(steps=0, **settings):
    data = load("sprites-small")
    state = prepare(configure("qlae", Choice("sprites-small"), data, {**SMALL, **settings}), data)
    for _ in range(steps):
        state.advance()
    return state


def test_each_number_becomes_the_nearest_value_of_its_own_latent():
    book = Codebook(3, 5)
    torch.testing.assert_close(book.values[1], torch.tensor([-0.5, -0.25, 0.0, 0.25, 0.5]))
    with torch.no_grad():
        book.values.copy_(torch.randn(3, 5))
    x = torch.randn(40, 3)
    made = book(x).detach()
    for row in range(40):
        for d in range(3):
            best = min(book.values[d].tolist(), key=lambda value: abs(value - float(x[row, d])))
            assert float(made[row, d]) == best


def test_the_decoder_sees_values_and_the_encoder_gets_its_gradient_straight_through():
    block, book = Quantised(size=3, values=5), Codebook(3, 5)
    x = torch.randn(7, 3, requires_grad=True)
    sample = block.sample(torch.cat([x, book(x)], -1), torch.empty(7, 0))
    assert torch.equal(sample, book(x))
    weight = torch.randn(7, 3)
    to_encoder, to_values = torch.autograd.grad((sample * weight).sum(), [x, book.values], allow_unused=True)
    assert torch.equal(to_encoder, weight)
    assert to_values is None or (to_values == 0).all()


def test_losses_by_hand_and_whom_they_move():
    space, book = Space({"z": Quantised(size=3, values=5)}), Codebook(3, 5).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    posterior = {"z": torch.cat([x, book(x)], -1)}
    out = Output(posterior, {}, space.sample(posterior, {"z": torch.empty(0)}), {"x": {"": torch.zeros(2, 6, *PIXELS)}})
    batch = Batch({"x": torch.rand(2, 6, *PIXELS)}, torch.arange(6).expand(2, 6))
    context = made_context(space, apply=lambda name, tensor: {"model.codebooks.z": book}[name](tensor))
    qlae = bind("qlae", {"beta_commit": 0.5})
    commitment = qlae.terms(out, batch, context)["commitment"]
    quantisation = qlae.codebook_terms(out, batch, context)["quantisation"]
    expected = (x - book(x)).square().sum(-1).mean(-1)
    torch.testing.assert_close(commitment.value, expected)
    torch.testing.assert_close(quantisation.value, expected)
    assert commitment.weight == 0.5 * 4 / 3  # pixels per latent
    parameters = [x, book.values]
    moved = [
        [g is not None and bool((g != 0).any()) for g in torch.autograd.grad(v.sum(), parameters, allow_unused=True)]
        for v in (commitment.value, quantisation.value)
    ]
    assert moved == [[True, False], [False, True]]


def test_scores_see_the_values_and_refuse_densities():
    state = state_of(steps=4)
    evaluation = Evaluation(state.model, load("sprites-small")).subsample(100)
    values = state.model.codebooks["z"].values
    codes = evaluation.means
    assert all(torch.isin(codes[:, d], values[d]).all() for d in range(3))
    assert torch.equal(evaluation.samples, codes)
    assert evaluate(evaluation, ["mig/histogram-mean"])
    for name in ("tc/exact", "mi/stratified", "kl/sampled", "elbo/closed-form", "latent-mi/exact"):
        with pytest.raises(UsageError):
            evaluate(evaluation, [name])
    for name in ("elbo", "kl"):
        with pytest.raises(UsageError, match="Quantised"):
            evaluate(evaluation, [f"{name}/closed-form"])
    for name in ("clusters/majority", "generated/purity"):
        with pytest.raises(UsageError, match=naming(name, "discrete", "Quantised")):
            evaluate(evaluation, [name])
    entropy = torch.distributions.Categorical(probs=codes[:, 0].unique(return_counts=True)[1].double()).entropy()
    torch.testing.assert_close(compute_coordinate_kl(evaluation)[0], entropy)
    assert float(traverse(evaluation).values.abs().max()) < 1
    drawn = state.model.prior_codes({"z": torch.rand(50, 3)})
    assert all(torch.isin(drawn[:, d], values[d]).all() for d in range(3))


def test_only_the_networks_weights_decay():
    large, none = state_of(steps=1, weight_decay=100.0), state_of(steps=1, weight_decay=0.0)
    start = state_of()
    rate = none.players[0].training.lr
    for name, before in start.group.parameters.items():
        decayed, plain = (s.group.parameters[name] for s in (large, none))
        shrunk = 100.0 * rate * before if before.ndim > 2 and "codebooks" not in name else torch.zeros_like(before)
        torch.testing.assert_close(plain - decayed, shrunk, rtol=1e-3, atol=1e-6)


def test_decay_equals_torchs_for_each_member():
    rates = (1e-2, 3e-3)
    start = [torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)]
    together = [p.clone() for p in start]
    alone = [[p[m].clone().requires_grad_() for p in start] for m in range(2)]
    ours = StackedAdam(together, torch.tensor(rates, dtype=torch.float64), weight_decay=0.3)
    theirs = [
        torch.optim.AdamW([{"params": w}, {"params": b, "weight_decay": 0.0}], lr=rate, weight_decay=0.3)
        for (w, b), rate in zip(alone, rates, strict=True)
    ]
    for _ in range(30):
        gradients = [torch.randn_like(p) for p in start]
        ours.step(gradients, torch.ones(2, dtype=torch.bool))
        for m in range(2):
            for parameter, gradient in zip(alone[m], gradients, strict=True):
                parameter.grad = gradient[m].clone()
            theirs[m].step()
    for m in range(2):
        for stacked, single in zip(together, alone[m], strict=True):
            torch.testing.assert_close(stacked[m], single.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "settings", "facts"),
    [
        ("qlae", {"latents": "normal"}, ["quantised"]),
        ("vae", {"latents": "quantised"}, ["qlae"]),
        ("qlae", {"latents.z.values": 1}, ["values", 2]),
        ("qlae", {"weight_decay": -0.1}, ["weight_decay", 0]),
    ],
)
def test_what_cannot_be_trained_is_refused(name, settings, facts):
    data = load("sprites-small")
    with pytest.raises(UsageError, match=naming(*facts)):
        prepare(configure(name, Choice("sprites-small"), data, {**SMALL, **settings}), data)
