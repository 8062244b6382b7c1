"""The loop: resumes exactly, stops at divergence, stops on request, trains players apart."""

import math
import os
import signal
import threading

import pytest
import torch
from torch import nn

from tests.support.messages import naming
from tests.support.training import OWN, SMALL, assert_same, config_of, train, weights_of
from tests.support.two_players import TwoPlayers, registered
from unbraid.config import Choice
from unbraid.data import load
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.errors import DivergedError, RunError, UsageError
from unbraid.methods import objective
from unbraid.store import RunFolder
from unbraid.training import Cadence, Interrupted, configure
from unbraid.training.interrupt import catch_interrupts
from unbraid.training.loop import GroupTraining
from unbraid.training.optimizer import clip_by_norm, decay_share
from unbraid.training.prepare import prepare
from unbraid.types import Modules, Player


class Scaled(nn.Module):
    """A layer whose output is multiplied by one number, a parameter without dimensions."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * self.layer(x)


def trained(tmp_path, config, sprites, name="run", **cadence):
    folder = RunFolder.create(tmp_path / name, config)
    train(folder, sprites, Cadence(**cadence) if cadence else None)
    return folder


def test_loss_falls_and_history_adds_up(tmp_path, sprites):
    folder = trained(tmp_path, config_of(sprites, steps=100, lr=3e-3), sprites)
    history = folder.read_lines("history")
    assert history[-1]["step"] == 100
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    for line in history:
        closed = (
            line["reconstruction"] + line["kl"] + 5 * line["tc/stratified"]
        )  # beta = 6: the closed-form KL holds one of them
        assert line["loss"] == pytest.approx(closed, rel=1e-5)
    assert folder.finished
    assert folder.checkpoints() == []


def test_sampled_form_weighs_every_term(tmp_path, sprites):
    config = config_of(sprites, kl="sampled", alpha=0.5, beta=3.0, gamma=2.0)
    line = trained(tmp_path, config, sprites).read_lines("history")[-1]
    assert line["loss"] == pytest.approx(
        line["reconstruction"]
        + 0.5 * line["mi/stratified"]
        + 3 * line["tc/stratified"]
        + 2 * line["dimension/stratified"],
        rel=1e-5,
    )


def test_same_seed_same_weights_and_other_seed_other_weights(tmp_path, sprites):
    one = trained(tmp_path, config_of(sprites), sprites, "one")
    two = trained(tmp_path, config_of(sprites), sprites, "two", log_steps=7, checkpoint_steps=9)
    other = trained(tmp_path, config_of(sprites, seed=1), sprites, "other")
    assert_same(weights_of(one), weights_of(two))
    name = "model.encoder.1.0.weight"
    assert not torch.equal(weights_of(one)[name], weights_of(other)[name])


def interrupted_at(step, state_advance):
    """`State.advance` that asks the process to stop, as Ctrl-C does, during `step`."""

    def advance(self):
        state_advance(self)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return advance


@pytest.mark.parametrize("network", ["mlp", "batchnorm"])
def test_interrupted_run_resumes_to_the_same_weights_and_history(tmp_path, sprites, monkeypatch, network):
    config = config_of(sprites)
    own = {} if network == "mlp" else {"encoder": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1024), nn.Linear(1024, 6))}
    config = configure("beta-tcvae", Choice("sprites-small", {}), sprites, OWN, Modules(**own)) if own else config
    whole, broken = (RunFolder.create(tmp_path / name, config) for name in ("whole", "broken"))
    train(whole, sprites, Cadence(log_steps=8), **own)
    with monkeypatch.context() as patch:
        from unbraid.training.state import State

        patch.setattr(State, "advance", interrupted_at(21, State.advance))
        with pytest.raises(Interrupted, match=naming(21, "the same call continues")):
            train(broken, sprites, Cadence(log_steps=8), **own)
    assert broken.read_json("status")["state"] == "interrupted"
    assert not broken.finished
    train(broken, sprites, Cadence(log_steps=8), **own)
    assert_same(weights_of(whole), weights_of(broken))

    def told(folder):
        return [{k: v for k, v in line.items() if k != "images_per_second"} for line in folder.read_lines("history")]

    assert told(whole) == told(broken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_step_stops_whatever_would_come_next(tmp_path, sprites, monkeypatch, number):
    config = config_of(sprites, steps=3)
    folder, finish = RunFolder.create(tmp_path / "late", config), GroupTraining.finish

    def late(fit):
        os.kill(os.getpid(), number)
        return finish(fit)

    monkeypatch.setattr(GroupTraining, "finish", late)
    with pytest.raises(KeyboardInterrupt):
        train(folder, sprites)
    assert folder.finished
    with pytest.raises(Interrupted, match="heeded True"), catch_interrupts() as outer:
        train(RunFolder.create(tmp_path / "inside", config), sprites)
        raise Interrupted(f"heeded {outer.requested}")


def test_training_in_a_thread_needs_no_signals(tmp_path, sprites):
    failures = []

    def work():
        try:
            trained(tmp_path, config_of(sprites, steps=3), sprites)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


def test_divergence_names_step_term_and_checkpoint(tmp_path, sprites, monkeypatch):
    from unbraid.training.state import State

    advance = State.advance

    def poisoned(self):
        if self.step == 17:
            with torch.no_grad():
                next(iter(self.group.parameters.values())).fill_(math.nan)
        advance(self)

    monkeypatch.setattr(State, "advance", poisoned)
    config = config_of(sprites)
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(DivergedError, match=naming("step 17", "loss", "step 15")):
        train(folder, sprites, Cadence(log_steps=10, checkpoint_steps=5))
    assert folder.read_json("status") == {"format": 1, "state": "diverged", "step": 17, "term": "loss"}
    assert all(t.isfinite().all() for t in folder.latest_checkpoint()[1].values() if t.is_floating_point())


def test_a_parameter_without_dimensions_trains_and_is_stored(tmp_path, sprites):
    encoder = Scaled(nn.Sequential(nn.Flatten(), nn.Linear(1024, 6)))
    config = configure("vae", Choice("sprites-small", {}), sprites, {**OWN, "clip": 1.0}, Modules(encoder))
    folder = RunFolder.create(tmp_path / "run", config)
    train(folder, sprites, Cadence(checkpoint_steps=10), encoder=encoder)
    stored = weights_of(folder)["model.encoder.scale"]
    assert stored.shape == ()
    assert float(stored) != 1.0


def test_an_absurd_rate_diverges_with_advice(tmp_path, sprites):
    config = config_of(sprites, lr=1e4, steps=300)
    with pytest.raises(DivergedError, match=naming("lr", "clip=1")):
        trained(tmp_path, config, sprites)


def test_batch_larger_than_the_data_is_refused(tmp_path, sprites):
    with pytest.raises(UsageError, match=naming("batch", 2000, 1536)):
        trained(tmp_path, config_of(sprites, batch=2000), sprites)


@pytest.mark.parametrize(("held_out", "batch"), [("none", 100), (0.1, 90)])
def test_a_batch_that_nobody_asked_for_is_no_larger_than_the_data(held_out, batch):
    few = FactorDataset("few", Pixels(torch.rand(100, 3), (3,)))
    assert configure("vae", Choice("few"), few, {"split": held_out}).training.batch == batch
    asked = configure("vae", Choice("few"), few, {"split": held_out, "batch": 300})
    assert asked.training.batch == 300  # refused later


@pytest.mark.parametrize(
    ("decay", "shares"), [("none", [1, 1, 1]), ("linear", [1, 0.5, 0.25]), ("cosine", [1, 0.5, 0.1464])]
)
def test_decay_of_the_learning_rate(sprites, decay, shares):
    training = config_of(sprites, decay=decay).training
    made = [decay_share(training, step) for step in (0, training.steps // 2, training.steps * 3 // 4)]
    assert made == pytest.approx(shares, abs=1e-3)


def test_decayed_rate_reaches_the_optimizer(sprites):
    state = prepare(config_of(sprites, decay="linear", steps=4), sprites)
    rates, adam = [], state.players[0].adam
    step = adam.step
    adam.step = lambda gradients, share: (rates.append(adam.rate * share), step(gradients, share))
    for _ in range(4):
        state.advance()
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_clipping_bounds_each_member_by_itself():
    gradients = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[[4.0]], [[0.4]]])]
    clipped = clip_by_norm(gradients, 1.0)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in clipped]).sum(0).sqrt()
    assert norms.tolist() == pytest.approx([1.0, 0.5], abs=1e-5)


def test_clipping_scales_a_shared_gradient_once():
    shared = torch.tensor([[3.0, 4.0]])
    clipped = clip_by_norm([shared, shared], 1.0)
    assert float(torch.cat(clipped).norm()) == pytest.approx(1.0, abs=1e-5)


def test_fused_adam_with_channels_last_equals_the_plain_one():
    """The fused update walks raw memory; a gradient in another layout would silently move the wrong weights.

    In double precision, since Adam blows up rounding errors of gradients near 0, which depend on the number of threads.
    """
    images = load("sprites-small")
    settings = {"network": "conv-small", "z": 3, "batch": 16, "steps": 3, "precision": "f64"}
    config = configure("vae", Choice("sprites-small", {}), images, settings)
    state, reference = prepare(config, images), prepare(config, images)
    plain = [p.detach().clone().contiguous().requires_grad_() for p in reference.group.parameters.values()]
    adam = torch.optim.Adam(plain, lr=config.training.lr, fused=False, foreach=False)
    for _ in range(3):
        for mine, theirs in zip(plain, reference.group.parameters.values(), strict=True):
            theirs.data.copy_(mine.data)
        gradients = []
        reference.players[0].adam.step = lambda given, share, into=gradients: into.extend(given)
        reference.advance()
        for mine, gradient in zip(plain, gradients, strict=True):
            mine.grad = gradient.contiguous()
        adam.step()
        state.advance()
    for mine, theirs in zip(state.group.parameters.values(), plain, strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)


@pytest.fixture
def two_players():
    with registered():
        yield


def test_players_move_only_their_own_parameters(sprites, two_players):
    state = prepare(config_of(sprites, "two-players"), sprites)
    critic, model = "objective.critic.weight", "model.encoder.1.0.weight"

    def moved():
        before = {name: state.group.parameters[name].detach().clone() for name in (critic, model)}
        state.advance()
        return {name: not torch.equal(before[name], state.group.parameters[name]) for name in before}

    assert moved() == {critic: True, model: True}
    assert moved() == {critic: False, model: True}
    assert list(state.take_means()[0]) == ["loss", "reconstruction", "kl", "fooled", "critic/loss", "critic/caught"]


def test_players_resume_exactly(tmp_path, sprites, two_players, monkeypatch):
    config = config_of(sprites, "two-players")
    whole = trained(tmp_path, config, sprites, "whole")
    broken = RunFolder.create(tmp_path / "broken", config)
    with monkeypatch.context() as patch:
        from unbraid.training.state import State

        patch.setattr(State, "advance", interrupted_at(13, State.advance))
        with pytest.raises(Interrupted):
            train(broken, sprites)
    train(broken, sprites)
    assert_same(weights_of(whole), weights_of(broken))


class StalePlayers(TwoPlayers):
    """Two sides of one forward, of which the second differentiates through what the first has just moved."""

    def players(self):
        return [
            Player("decoder", ("model.decoder",), self.model_loss),
            Player("encoder", ("model.encoder",), self.model_loss),
        ]


def test_stale_gradients_raise_instead_of_training_on(sprites):
    objective("stale-players")(StalePlayers)
    try:
        state = prepare(config_of(sprites, "stale-players"), sprites)
        with pytest.raises(RuntimeError, match="inplace"):
            state.advance()
    finally:
        objective.remove("stale-players")


def test_a_checkpoint_that_does_not_fit_is_refused(sprites):
    state = prepare(config_of(sprites), sprites)
    state.advance()
    stored = {name: tensor.clone() for name, tensor in state.tensors().items()}
    with pytest.raises(RunError, match="model"):
        state.restore(1, {n: t for n, t in stored.items() if "encoder" not in n})
    with pytest.raises(RunError, match="random"):
        state.restore(1, {**stored, "noise": stored["noise"] + 1})


@pytest.mark.parametrize(
    ("recipe", "network", "steps"),
    [
        ("vae", "mlp", 12),
        ("beta-tcvae", "mlp", 12),
        ("two-players", "mlp", 12),
        ("vae", "batchnorm", 12),
        ("beta-tcvae", "batchnorm", 12),
        ("two-players", "batchnorm", 12),
        ("vae", "scaled", 12),
        pytest.param("vae", "mlp", 200, marks=pytest.mark.slow),
        pytest.param("beta-tcvae", "batchnorm", 200, marks=pytest.mark.slow),
        pytest.param("two-players", "batchnorm", 200, marks=pytest.mark.slow),
    ],
)
def test_members_equal_single_runs(sprites, two_players, recipe, network, steps):
    encoders = {
        "mlp": {},
        "batchnorm": {"encoder": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1024), nn.Linear(1024, 6))},
        "scaled": {"encoder": Scaled(nn.Sequential(nn.Flatten(), nn.Linear(1024, 6)))},
    }
    own, modules = encoders[network], Modules(**encoders[network])
    weights = {"beta-tcvae": ({"beta": 2.0}, {"beta": 8.0})}.get(recipe, ({}, {}))
    sizes = {**(OWN if own else SMALL), "precision": "f64"}
    made = [{**sizes, **weight, "seed": seed} for seed, weight in enumerate(weights)]
    configs = [configure(recipe, Choice("sprites-small", {}), sprites, settings, modules) for settings in made]
    together, alone = prepare(configs, sprites, modules), [prepare(config, sprites, modules) for config in configs]
    for state in (together, *alone):
        for _ in range(steps):
            state.advance()
    for m, single in enumerate(alone):
        for name, tensor in {**single.group.parameters, **single.group.buffers}.items():
            stacked = {**together.group.parameters, **together.group.buffers}[name]
            torch.testing.assert_close(stacked[m], tensor[0], rtol=1e-8, atol=1e-8)


def test_a_diverging_member_leaves_its_neighbours_alone(sprites):
    configs = [config_of(sprites, seed=seed) for seed in range(3)]
    whole, broken = prepare(configs, sprites), prepare(configs, sprites)
    for step in range(20):
        if step == 7:
            with torch.no_grad():
                next(iter(broken.group.parameters.values()))[1].fill_(math.nan)
                frozen = {n: p[1].detach().clone() for n, p in broken.group.parameters.items()}
        whole.advance()
        broken.advance()
    assert broken.alive.tolist() == [True, False, True]
    assert broken.find_divergences() == [(1, 7, "loss")]
    for name, parameter in broken.group.parameters.items():
        assert torch.equal(parameter[0], whole.group.parameters[name][0])
        assert torch.equal(parameter[2], whole.group.parameters[name][2])
        torch.testing.assert_close(parameter[1], frozen[name], rtol=0, atol=0, equal_nan=True)
    lines = [state.take_means() for state in (whole, broken)]
    assert lines[0][0] == lines[1][0]
    assert lines[0][2] == lines[1][2]


def test_bf16_trains_close_to_f32(tmp_path, sprites):
    f32, bf16 = (config_of(sprites, steps=50, precision=precision) for precision in ("f32", "bf16"))
    wide = trained(tmp_path, f32, sprites, "f32").read_lines("history")[-1]
    narrow = trained(tmp_path, bf16, sprites, "bf16").read_lines("history")[-1]
    assert narrow["loss"] == pytest.approx(wide["loss"], rel=0.05)
    assert narrow["loss"] != wide["loss"]


@pytest.mark.parametrize(("wanted", "facts"), [("captured", ["CUDA", "cpu"]), ("fast", ["fast", "captured"])])
def test_an_execution_that_cannot_be_is_refused(sprites, monkeypatch, wanted, facts):
    monkeypatch.setenv("UNBRAID_EXECUTION", wanted)
    with pytest.raises(UsageError, match=naming("UNBRAID_EXECUTION", *facts)):
        prepare(config_of(sprites), sprites)
