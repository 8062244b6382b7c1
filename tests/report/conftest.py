"""A tiny untrained run: a folder, an evaluation and its scores."""

from pathlib import Path

import pytest

from tests.support.tiny_runs import HOSTILE, tiny_config, tiny_data
from unbraid.metrics import Evaluation, Score, evaluate
from unbraid.models import build
from unbraid.store import RunFolder


@pytest.fixture
def evaluation() -> Evaluation:
    return make_evaluation()


def make_evaluation() -> Evaluation:
    return Evaluation(build(tiny_config(), (1, 8, 8)), tiny_data())


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return make_folder(tmp_path / "run")


def make_folder(path: Path) -> RunFolder:
    made = RunFolder.create(path, tiny_config())
    for step in (1, 5, 10):
        made.append_line(
            "history",
            {"step": step, "epoch": 1.0, "loss": 9.0 / step, "tc/stratified": 1.0 if step > 1 else float("nan")},
        )
    made.write_json("environment", {"torch": "2", "command": HOSTILE})
    return made


@pytest.fixture
def scores(evaluation) -> list[Score]:
    return measure(evaluation)


def measure(evaluation: Evaluation) -> list[Score]:
    return evaluate(evaluation, ["mig/exact", "mig/histogram-mean", "kl", "tc/exact"], samples=24)
