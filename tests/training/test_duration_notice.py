"""Long training on a CPU is announced once, after the first seconds, with what to do."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from tests.cli.shared import NARROW, TINY
from tests.support.command import unbraid
from tests.support.messages import names
from unbraid import progress as progress_module
from unbraid.config import Training
from unbraid.progress import progress
from unbraid.training import duration_notice
from unbraid.training.duration_notice import DurationNotice
from unbraid.training.state import State


def announce_while_training(monkeypatch, seconds_per_step, steps=1000, shown=True, patience=None):
    """Return what is announced in the first 100 steps of a training, on a clock that stands still between them."""
    clock, announced = SimpleNamespace(time=100.0), []
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock.time)
    monkeypatch.setattr(duration_notice, "announce", announced.append)
    notice = DurationNotice(Training(patience=patience), shown)
    with progress("Training", steps, shown=False) as bar:
        for _ in range(100):
            clock.time += seconds_per_step
            bar.advance()
            notice.check(bar)
    return announced


def test_long_training_is_announced_once_with_steps_for_half_an_hour(monkeypatch):
    (told,) = announce_while_training(monkeypatch, seconds_per_step=7.2)
    assert names(told, "about 1 h 59 min", "CPU", "steps=250", "--device cuda", "Ctrl-C")


def test_training_that_may_end_early_takes_up_to_that_long(monkeypatch):
    (told,) = announce_while_training(monkeypatch, seconds_per_step=7.2, patience=10)
    assert names(told, "up to 1 h 59 min")


def test_the_first_seconds_are_enough(monkeypatch):
    (told,) = announce_while_training(monkeypatch, seconds_per_step=0.5, steps=100_000)
    assert names(told, "steps=3600")


@pytest.mark.parametrize("quiet", [{"seconds_per_step": 1.7}, {"seconds_per_step": 7.2, "shown": False}])
def test_short_training_and_other_ranks_announce_nothing(monkeypatch, quiet):
    assert announce_while_training(monkeypatch, **quiet) == []


@pytest.fixture
def announced(monkeypatch):
    """What training announces, however short it is."""
    said = []
    monkeypatch.setattr(duration_notice, "announce", said.append)
    for name in ("LONG_SECONDS", "MEASURED_SECONDS", "MEASURED_STEPS"):
        monkeypatch.setattr(duration_notice, name, 1e-9)
    return said


COMMAND = ["train", "vae", *TINY, *NARROW, "--name", "run", "--json", "--device", "cpu"]


def test_the_output_of_training_stays_json(announced, tmp_path):
    assert json.loads(unbraid(*COMMAND, cwd=tmp_path))["step"] == 3
    assert len(announced) == 1


def test_resumed_training_announces_nothing(announced, monkeypatch, tmp_path):
    def advance_and_stop(self, advance=State.advance):
        advance(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(State, "advance", advance_and_stop)
        unbraid(*COMMAND, cwd=tmp_path, code=130)
    unbraid(*COMMAND, "--resume", cwd=tmp_path)
    assert announced == []
