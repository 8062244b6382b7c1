"""Early stopping ends a run when held-out rows no longer profit, changes nothing else, and survives a restart."""

import math

import pytest
import torch

import unbraid as ub
from tests.support.messages import naming
from unbraid.errors import UsageError
from unbraid.methods import presets
from unbraid.training import Cadence
from unbraid.training.early_stopping import HELD_OUT, HeldOutWatch
from unbraid.training.interrupt import Interrupted

SETTINGS = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (64, 64), "z": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def noise():
    """Rows without structure: a model can only learn them by heart."""
    return torch.randn(60, 8, generator=torch.Generator().manual_seed(0)).numpy()


def train(noise, root, **settings):
    given = {**SETTINGS, "batch": 25, "lr": 5e-3, "decay": "none", "likelihood": "gaussian", "split": 0.5, "steps": 400}
    return ub.train("vae", data=noise, root=root, **{**given, **settings})


@pytest.fixture(scope="module")
def stopped(noise, tmp_path_factory):
    return train(noise, tmp_path_factory.mktemp("runs"), patience=3)


def test_it_stops_after_as_many_measurements_without_improvement(stopped):
    held_out = {line["step"]: line[HELD_OUT] for line in stopped.history if HELD_OUT in line}
    assert list(held_out) == list(range(8, stopped.history[-1]["step"] + 1, 8))  # 50 in 400 steps
    *before, third, second, last = held_out.values()
    assert stopped.history[-1]["step"] < 400
    assert min(third, second, last) >= min(before) == before[-1]
    assert stopped.folder.finished


def test_the_held_out_loss_is_that_of_the_held_out_rows(stopped, noise):
    """Without beta and with as many draws as latents it is minus the bound, which an exact metric knows better."""
    bound = -next(score.value for score in stopped.score("elbo") if score.name.startswith("elbo"))
    assert stopped.history[-1][HELD_OUT] == pytest.approx(bound, rel=0.2)


def test_the_held_out_loss_compares_with_the_loss(noise, tmp_path, monkeypatch):
    """Both estimate q(z) as that of the 54 training rows; another number of rows N shifts every term of it."""
    estimate, seen = presets.batch_aggregate, set()

    def record(*given):
        seen.add(given[-1])
        return estimate(*given)

    monkeypatch.setattr(presets, "batch_aggregate", record)
    settings = {**SETTINGS, "batch": 6, "likelihood": "gaussian", "split": 0.1, "steps": 2}
    run = ub.train("beta-tcvae", data=noise, root=tmp_path, patience=5, **settings)
    assert HELD_OUT in run.history[-1]
    assert seen == {54}


def test_a_run_that_does_not_stop_early_has_the_weights_of_one_without_patience(noise, tmp_path):
    short = {"steps": 40, "root": tmp_path}
    watched, plain = train(noise, patience=50, **short), train(noise, **short)
    assert watched.path != plain.path
    assert "patience" not in plain.config.as_dict()["training"]
    for one, other in zip(watched.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    losses = [[line["loss"] for line in run.history] for run in (watched, plain)]
    assert losses[0] == losses[1]


def interrupt_after_two_misses(noise, root, monkeypatch):
    """Train until two measurements in a row were no better, with a checkpoint at the step before the second."""
    measure = HeldOutWatch.measure

    def stop_at_a_measurement(self):
        measure(self)
        if self.misses == 2:
            monkeypatch.setattr(HeldOutWatch, "measure", measure)
            raise KeyboardInterrupt

    monkeypatch.setattr(HeldOutWatch, "measure", stop_at_a_measurement)
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(noise, root, patience=3, cadence=Cadence(checkpoint_steps=1))


def test_a_restart_stops_at_the_same_step(stopped, noise, tmp_path, monkeypatch):
    interrupt_after_two_misses(noise, tmp_path, monkeypatch)
    again = train(noise, tmp_path, patience=3)
    plain = [{k: v for k, v in line.items() if k != "images_per_second"} for line in again.history]
    assert plain == [{k: v for k, v in line.items() if k != "images_per_second"} for line in stopped.history]
    for one, other in zip(again.model.parameters(), stopped.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_restart_drops_losses_that_an_older_version_measured(stopped, noise, tmp_path, monkeypatch, capsys):
    """Older checkpoints state no kind of loss. A loss of theirs may be lower than any that is measured today."""

    def store_older_state(self):
        return {"watch": torch.tensor([-1e6, self.state.step, 2.0, -1e6], dtype=torch.float64)}

    with monkeypatch.context() as older:
        older.setattr(HeldOutWatch, "tensors", store_older_state)
        interrupt_after_two_misses(noise, tmp_path, monkeypatch)
    again = train(noise, tmp_path, patience=3)
    assert "measured the held-out loss differently" in capsys.readouterr().err
    last = stopped.history[-1]["step"]
    assert again.history[-1]["step"] > last  # the first loss after the restart counts as the best one so far
    assert all(line.get(HELD_OUT, 0) > -1e6 for line in again.history)


def test_patience_needs_held_out_rows_and_a_single_run(noise, tmp_path):
    with pytest.raises(UsageError, match=naming("patience", "split", "none")):
        train(noise, tmp_path, patience=3, split="none")
    with pytest.raises(UsageError, match=naming("patience", 0)):
        train(noise, tmp_path, patience=0)
    with pytest.raises(UsageError, match=naming("patience", "sweep")):
        ub.sweep("vae", data=noise, seed=[0, 1], patience=3, steps=2, split=0.5, root=tmp_path, **SETTINGS)


def test_a_watch_without_measurements_restores_as_it_was(stopped):
    watch = HeldOutWatch.__new__(HeldOutWatch)
    watch.patience, watch.best, watch.best_step, watch.misses, watch.latest = 3, math.inf, 0, 0, None
    stored = watch.tensors()
    watch.best, watch.misses, watch.latest = 1.0, 2, 0.5
    watch.restore(stored, print)
    assert (watch.best, watch.misses, watch.latest) == (math.inf, 0, None)
