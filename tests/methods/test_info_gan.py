"""InfoGAN: its losses by hand, who moves whom, what it learns on normal data, and all that a run is asked for."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from tests.methods.helpers import normal_space
from tests.support.messages import naming
from unbraid import api
from unbraid.config import Choice
from unbraid.data import from_array, load
from unbraid.errors import UsageError
from unbraid.methods.info_gan import NOISE, Generated, InfoGANModel
from unbraid.models.adversarial import GENERATED_NOISE, REAL_NOISE
from unbraid.networks import decoder, encoder, make_likelihood
from unbraid.objectives import Context, bind
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare
from unbraid.types import Batch, Modules, Output

SMALL = {"network": "mlp", "encoder.hidden": (8,), "decoder.hidden": (8,), "z": 2, "noise": 1, "batch": 8}


def made(rows=5, steps=10, step=4):
    """Players, and a context of two members whose critic is linear and whose generator has moved since the forward."""
    space, draw = normal_space(2), torch.Generator().manual_seed(3)
    weights = torch.randn(2, 3, 5, generator=draw, dtype=torch.float64)
    x, old, real_blur, blur = torch.randn(4, 2, rows, 3, generator=draw, dtype=torch.float64)
    codes, noise = torch.randn(2, 2, rows, 2, generator=draw, dtype=torch.float64)
    new = torch.cat([codes, noise[..., :1]], -1).exp()

    def apply(name, *inputs):
        if name == "model.generator":
            return torch.cat(inputs, -1).exp()
        flat = inputs[0] @ weights
        return flat[..., -1], {"z": flat[..., :-1]}

    settings = {"lambda_info": torch.tensor([0.1, 2.0]), "instance_noise": torch.tensor([0.5, 0.0])}
    players = bind("info-gan", {**settings, "instance_noise_steps": steps}).players()
    drawn = {NOISE: noise[..., :1], REAL_NOISE: real_blur, GENERATED_NOISE: blur}
    context = Context(space, {}, 50, step, drawn, apply)
    out = Output({}, {}, {"z": codes}, {}, Generated(old.requires_grad_()))
    return players, (out, Batch({"x": x}, torch.arange(rows)), context), (weights, old, new, real_blur, blur)


def test_losses_against_their_definitions():
    """In numpy, one member at a time: at step 4 of 10, half of the instance noise is left."""
    (generator, critic), given, rest = made()
    with torch.no_grad():
        left, right = generator.loss(*given), critic.loss(*given)
    weights, old, new, real_blur, blur = (tensor.detach().numpy() for tensor in rest)
    x, codes = given[1].x["x"].numpy(), given[0].sample["z"].numpy()
    for m, (weight, level) in enumerate([(0.1, 0.25), (2.0, 0.0)]):

        def judged(seen, eps, m=m, level=level):
            flat = (seen[m] + level * eps[m]) @ weights[m]
            log_q = norm.logpdf(codes[m], flat[:, :2], np.exp(flat[:, 2:4] / 2)).sum(1)
            return flat[:, 4], 2 * norm.entropy() + log_q.mean()

        real, (fake, info), (now, info_now) = judged(x, real_blur)[0], judged(old, blur), judged(new, blur)
        adversarial = -np.log(1 / (1 + np.exp(-fake))).mean()
        told = -np.log(1 / (1 + np.exp(-real))).mean() - np.log(1 - 1 / (1 + np.exp(-now))).mean()
        assert float(left["info"].value[m]) == pytest.approx(info)
        assert float(left.loss[m]) == pytest.approx(adversarial - weight * info)
        assert float(right.loss[m]) == pytest.approx(told - weight * info_now)
        assert float(right["accuracy"].value[m]) == pytest.approx(((real > 0).mean() + (now < 0).mean()) / 2)
        assert float(right["instance_noise"].value[m]) == pytest.approx(level)


def test_the_critics_loss_does_not_reach_the_generator():
    (generator, critic), given, (_, old, *_) = made()
    assert float(torch.autograd.grad(generator.loss(*given).loss.sum(), old)[0].abs().min()) > 0
    terms = critic.loss(*given)
    assert not terms.loss.requires_grad  # a critic without weights of its own: nothing else is left to differentiate


def test_each_player_moves_its_own_parameters(monkeypatch):
    data = load("sprites-small", {})
    state = prepare(configure("info-gan", Choice("sprites-small", {}), data, SMALL), data)
    for name, other in (("generator", 1), ("critic", 0)):
        before = {n: p.detach().clone() for n, p in state.group.parameters.items()}
        with monkeypatch.context() as patch:
            patch.setattr(state.players[other], "step", lambda *_, **__: None)
            state.advance()
        moved = {n for n, p in state.group.parameters.items() if not torch.equal(before[n], p)}
        assert moved == {n for n in before if n.startswith(f"model.{name}.")}


@pytest.mark.parametrize("at", [int, torch.tensor])
def test_instance_noise_falls_to_nothing(at):
    level = bind("info-gan", {"instance_noise": 0.2, "instance_noise_steps": 100}).noise_level
    assert [float(level(at(step))) for step in (49, 74, 99, 5000)] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert float(bind("info-gan", {"instance_noise_steps": 0}).noise_level(at(0))) == 0


def test_the_generator_meets_normal_data_and_its_code_can_be_read():
    """Under blur that stays: without any, the two sides circle around the answer."""
    mean, spread = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 1.0])
    data = from_array(mean + spread * torch.randn(1000, 2))
    given = {**SMALL, "encoder.hidden": (32,), "decoder.hidden": (32,), "z": 1, "batch": 64, "lr": 1.6e-2, "steps": 200}
    given |= {"network": "mlp-infogan", "decay": "linear", "instance_noise": 1.0, "instance_noise_steps": 10**6}
    state = prepare(configure("info-gan", Choice("given", {}), data, given), data)

    def generated():
        model = state.model
        model.load_state_dict({n.removeprefix("model."): p[0] for n, p in state.group.parameters.items()})
        with torch.no_grad():
            return model.generator(torch.randn(4000, 1), torch.randn(4000, 1))

    assert float((generated().mean(0) - mean).abs().max()) > 1
    for _ in range(200):
        state.advance()
        if state.step == 150:
            state.take_means()
    found, line = generated(), state.take_means()[0]
    assert float((found.mean(0) - mean).abs().max()) < 0.35
    assert 0.6 < float(found[:, 1].std()) < 2.0
    capacity = 0.5 * math.log1p(float(found[:, 0].var())) + 0.5 * math.log1p(float(found[:, 1].var()))
    assert 0.2 < line["info"] < capacity + 0.1  # nats: what can be read of the code through the blur
    assert 0.4 < line["critic/accuracy"] < 0.7


def test_what_the_decoder_sees():
    model = InfoGANModel(
        normal_space(2), (3,), torch.nn.Identity(), torch.nn.Identity(), make_likelihood("gaussian", {}), noise=1
    )
    codes = torch.randn(3000, 2)
    seen = model.decode(codes)[""]
    assert min(kstest(column, "uniform", (-1, 2)).pvalue for column in seen[:, :2].T.numpy()) > 0.01
    assert float(seen[:, 2].abs().max()) == 0
    drawn = {name: torch.randn(need.shape) for name, need in model.prior_needs(7).items()}
    whole = model.prior_codes(drawn)
    torch.testing.assert_close(model.decode(whole)[""], torch.erf(whole / math.sqrt(2)))
    torch.testing.assert_close(whole[:, 2:], drawn[NOISE])


def test_networks_are_chen2018s():
    """Appendix H.1: D and Q are rows of one last layer, here for 5 codes and 5 noise variables."""
    outputs, width = InfoGANModel.network_widths(normal_space(5), {"noise": 5})
    shape = (1, 64, 64)
    critic = encoder["conv-infogan"].make(shape, outputs)
    generator = decoder["conv-infogan"].make(width, shape)
    wide = [tuple(p.shape[:2]) for p in critic.parameters() if p.ndim == 4]
    assert wide == [(32, 1), (32, 32), (64, 32), (64, 64), (512, 64), (11, 512)]
    wide = [tuple(p.shape[:2]) for p in generator.parameters() if p.ndim == 4]
    assert wide == [(10, 512), (512, 64), (64, 64), (64, 32), (32, 32), (32, 1)]
    for network, count in ((critic, 5), (generator, 5)):
        kinds = [type(layer).__name__ for layer in network]
        assert kinds.count("BatchNorm2d") == kinds.count("LeakyReLU") == count
    assert float(critic[0].weight.detach().std()) == pytest.approx(0.02, rel=0.15)
    config = configure("info-gan", Choice("given", {}), from_array(torch.rand(4, *shape)), {})
    assert (config.encoder.name, config.training.lr, config.latents["z"]["size"]) == ("conv-infogan", 2e-4, 5)
    assert [dict(player.optimizer) for player in bind("info-gan", {}).players()] == [{"betas": (0.5, 0.999)}] * 2


def test_a_run_is_scored_and_shown_without_a_likelihood(tmp_path):
    run = api.train("info-gan", data="sprites-small", data_positions=8, root=tmp_path, device="cpu", steps=3, **SMALL)
    names = {score.name for score in run.score()}
    assert {"mig/exact", "mi/exact", "tc/exact"} <= names
    assert len(run.notes) == 2
    for name, note in zip(("elbo/closed-form", "reconstruction/nats"), run.notes, strict=True):
        assert name in note
    for name in ("elbo/sampled", "reconstruction/nats"):
        with pytest.raises(UsageError, match="likelihood"):
            run.score(name)
    assert run.encode(run.dataset.images(torch.arange(3))).shape == (3, 2)
    assert run.decode(torch.zeros(4, 2)).shape == run.sample(4).shape == (4, 1, 32, 32)
    assert run.traverse(columns=3).width > 96
    assert "critic/real" in run.report().read_text()


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"latents": "normal+concrete:3"}, ["continuous", "c"]),
        ({"noise": -1}, ["noise", 0, -1]),
        ({"lambda_info": -0.5}, ["lambda_info", "info-gan", -0.5]),
        ({"lambda_info": "much"}, ["lambda_info", "much"]),
        ({"instance_noise_steps": -3}, ["instance_noise_steps", -3]),
        ({"draws": "beta"}, ["draws", "uniform", "normal", "beta"]),
    ],
)
def test_bad_input_is_refused(given, facts):
    with pytest.raises(UsageError, match=naming(*facts)):
        configure("info-gan", Choice("sprites-small", {}), load("sprites-small", {}), {**SMALL, **given})


def test_an_encoder_without_a_logit_is_refused():
    data = from_array(torch.rand(20, 6))
    config = configure("info-gan", Choice("given", {}), data, {"z": 2, "batch": 4})
    with pytest.raises(UsageError, match=naming("[batch, 5]", "logit")):
        prepare(config, data, Modules(torch.nn.Linear(6, 4))).advance()
