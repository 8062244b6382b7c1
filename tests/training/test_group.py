"""Runs trained as one program end as the ordinary run folders that they would have been alone."""

import math
import os
import signal

import pytest
import torch

from tests.support.messages import naming
from tests.support.training import assert_same, config_of, train, weights_of
from unbraid.store import RunFolder
from unbraid.training import Cadence, GroupFolders, Interrupted, train_group
from unbraid.training.state import State


def group_of(tmp_path, sprites, name="group", cadence=Cadence(), seeds=(0, 1, 2), **settings):  # noqa: B008
    configs = [config_of(sprites, seed=seed, precision="f64", **settings) for seed in seeds]
    folders = [RunFolder.create(tmp_path / name / f"s{c.training.seed}", c) for c in configs]
    return GroupFolders(RunFolder(tmp_path / name / "group"), folders, cadence)


def told(folder):
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in folder.read_lines("history")]


def test_members_end_as_ordinary_runs(tmp_path, sprites):
    group = group_of(tmp_path, sprites)
    assert train_group(group, sprites) == ["finished"] * 3
    for folder in group.runs:
        alone = RunFolder.create(tmp_path / "alone" / folder.path.name, folder.config)
        train(alone, sprites, group.cadence)
        assert folder.finished
        assert folder.read_json("data") == alone.read_json("data")
        for name, tensor in weights_of(alone).items():
            torch.testing.assert_close(weights_of(folder)[name], tensor, rtol=1e-8, atol=1e-8)
        for mine, theirs in zip(told(folder), told(alone), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-8)
    assert group.checkpoints.checkpoints() == []


def test_an_interrupted_group_resumes_to_the_same_weights(tmp_path, sprites, monkeypatch):
    whole, broken = (group_of(tmp_path, sprites, name, Cadence(log_steps=8)) for name in ("whole", "broken"))
    train_group(whole, sprites)
    advance = State.advance

    def asked_to_stop(self):
        advance(self)
        if self.step == 21:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(State, "advance", asked_to_stop)
        with pytest.raises(Interrupted, match=naming(21)):
            train_group(broken, sprites)
    assert [folder.read_json("status")["state"] for folder in broken.runs] == ["interrupted"] * 3
    train_group(broken, sprites)
    for one, other in zip(whole.runs, broken.runs, strict=True):
        assert_same(weights_of(one), weights_of(other))
        assert told(one) == told(other)


def test_a_diverged_member_is_flagged_also_after_a_resume(tmp_path, sprites, monkeypatch):
    whole, broken = (group_of(tmp_path, sprites, name) for name in ("whole", "broken"))
    train_group(whole, sprites)
    advance = State.advance

    def poisoned(self):
        if self.step == 7:
            with torch.no_grad():
                next(iter(self.group.parameters.values()))[1].fill_(math.nan)
        advance(self)
        if self.step == 21:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(State, "advance", poisoned)
        with pytest.raises(Interrupted):
            train_group(broken, sprites)
    assert train_group(broken, sprites) == ["finished", "diverged", "finished"]
    assert broken.runs[1].read_json("status") == {"format": 1, "state": "diverged", "step": 7, "term": "loss"}
    assert not broken.runs[1].finished
    assert max(line["step"] for line in broken.runs[1].read_lines("history")) <= 7
    for member in (0, 2):
        assert_same(weights_of(whole.runs[member]), weights_of(broken.runs[member]))
        assert told(whole.runs[member]) == told(broken.runs[member])
