import sys

import pytest

from tests.support.messages import naming
from unbraid import api
from unbraid.errors import MissingExtraError, UsageError
from unbraid.tracking import Trackers, tracker
from unbraid.training import Cadence


def again(run, root, **options):
    """Train the same settings as the shared run's, under another root."""
    config = run.config
    networks = {"network": "mlp", "encoder_hidden": (16,), "decoder_hidden": (16,), "z": 3}
    training = {"batch": config.training.batch, "steps": config.training.steps}
    data = {"data": "sprites-small", "data_positions": 4, "device": "cpu"}
    return api.train("beta-vae", **data, **networks, **training, root=root, cadence=Cadence(log_steps=4), **options)


def test_tensorboard_gets_every_line_and_changes_nothing(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked = again(run, tmp_path, track="tensorboard")
    assert tracked.config == run.config and tracked.path.name == run.config.run_id
    assert tracked.folder.content() == run.folder.content()
    events = EventAccumulator(str(tracked.path / "tensorboard")).Reload()
    seen = [(event.step, pytest.approx(event.value)) for event in events.Scalars("loss")]
    assert [(line["step"], line["loss"]) for line in tracked.history] == seen


def test_mlflow_gets_settings_history_and_scores(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "mlruns").as_uri()
    for name, value in {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
        monkeypatch.setenv(name, value)
    run.score("kl")
    run.track("mlflow")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (stored,) = client.search_runs([client.get_experiment_by_name("unbraid").experiment_id])
    assert stored.data.params["training.steps"] == "8" and stored.info.status == "FINISHED"
    history = client.get_metric_history(stored.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == [(line["step"], line["loss"]) for line in run.history]
    assert stored.data.metrics["score/kl/closed-form"] == run.score("kl/closed-form")[0].value


def test_weights_and_biases_writes_an_offline_run(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is heavy; pip install unbraid[wandb]")
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    run.track("wandb")
    assert list(run.path.glob("wandb/offline-run-*/*.wandb"))


def test_only_finite_numbers_are_passed_on(run):
    seen = []

    class Listener:
        def log(self, step, values):
            seen.append((step, values))

    trackers = Trackers(run.folder, ())
    trackers.open["listener"] = Listener()
    line = {"format": 1, "step": 3, "loss": 2.0, "kl": None, "tc": float("nan"), "mi": float("inf"), "note": "words"}
    trackers.log(line)
    assert seen == [(3, {"loss": 2.0})]


def test_a_tracker_that_fails_is_dropped(run):
    @tracker("failing")
    class Failing:
        """Fails at its first line."""

        def __init__(self, folder, start):
            self.closed = False

        def log(self, step, values):
            raise OSError("disk full")

        def close(self):
            raise AssertionError("a dropped tracker is not closed")

    try:
        with pytest.warns(UserWarning, match=naming("failing", "disk full")) as caught:
            run.track("failing")
    finally:
        del tracker._entries["failing"]
    assert len(caught) == 1


def test_a_missing_package_is_named_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=naming("unbraid[tensorboard]")):
        api.train("vae", data="sprites-small", track="tensorboard", root=tmp_path)
    with pytest.raises(UsageError, match=naming("tracker", "tensorbord")):
        api.train("vae", data="sprites-small", track="tensorbord", root=tmp_path)
    assert not list(tmp_path.iterdir())
