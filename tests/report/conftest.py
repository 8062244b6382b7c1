"""A tiny untrained run: a folder, an evaluation and its scores."""

import pytest

from tests.support.tiny_runs import HOSTILE, tiny_config, tiny_data
from unbraid.metrics import Evaluation, evaluate
from unbraid.models import build
from unbraid.store import RunFolder


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(build(tiny_config(), (1, 8, 8)), tiny_data())


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", tiny_config())
    for step in (1, 5, 10):
        made.append_line(
            "history",
            {"step": step, "epoch": 1.0, "loss": 9.0 / step, "tc/stratified": 1.0 if step > 1 else float("nan")},
        )
    made.write_json("environment", {"torch": "2", "command": HOSTILE})
    return made


@pytest.fixture
def scores(evaluation):
    return evaluate(evaluation, ["mig/exact", "mig/histogram-mean", "kl", "tc/exact"], samples=24)
