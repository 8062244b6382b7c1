"""Scores that processes compute while the next series trains are those that are computed after each series."""

import csv
import shutil
import sys
import time
from dataclasses import replace

import pytest
import torch

from unbraid import scoring, scoring_pool
from unbraid.errors import RunError, UsageError
from unbraid.experiments import Scale, measuring, running
from unbraid.experiments.base import Experiment
from unbraid.experiments.measuring import measure_ahead, measure_all
from unbraid.experiments.series_scoring import SeriesScoring
from unbraid.experiments.stored_runs import Source
from unbraid.metrics import metric
from unbraid.plugins import load_files
from unbraid.scores_ahead import ScoresAhead
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes score on Linux only")

CPU = torch.device("cpu")

TINY = {"data": "sprites-small", "data.positions": 4, "network": "mlp", "encoder.hidden": (8,)}
TINY |= {"decoder.hidden": (8,), "z": 2, "batch": 16, "steps": 20, "seed": range(2)}
FOREST = ("dci/random-forest/disentanglement", {"train": 40, "test": 20, "factors": ("posX", "scale")})
MEASURES = {
    "few trees": FOREST,
    "fewer rows": ("dci/random-forest/disentanglement", {**FOREST[1], "train": 30}),
    "KL": ("kl/closed-form", {}),
}
FACTS = Experiment(
    series={"vae": {"recipe": "vae"}, "beta-vae": {"recipe": "beta-vae"}},
    scales={name: Scale(TINY, measures=MEASURES) for name in ("small", "paper")},
    metrics=("mig/histogram-mean", "kl/closed-form"),
)

LEAN = replace(FACTS, series={"vae": {"recipe": "vae"}}, scales={name: Scale(TINY) for name in ("small", "paper")})
ALSO_COHERENCE = replace(LEAN, metrics=(*LEAN.metrics, "coherence/classifier"))
"""Asks for a metric of several modalities, which the runs do not have."""


def read(members):
    return [{name: score.value for name, score in member.scores.items()} for member in members]


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory):
    """The results of an experiment whose series are scored one after the other, and its runs."""
    found, runs, _ = running._run_experiment(FACTS, "small", tmp_path_factory.mktemp("in-turn"), "cpu", None)
    return found, runs


def test_an_experiment_scores_a_series_while_the_next_one_trains(in_turn, tmp_path, monkeypatch):
    order, train, collect = [], running._Training.run_series, ScoresAhead.finish
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    monkeypatch.setattr(running._Training, "run_series", lambda *own: order.append(own[1]) or train(*own))
    monkeypatch.setattr(ScoresAhead, "finish", lambda self: order.append("collect") or collect(self))
    monkeypatch.setattr(measuring, "score_missing", lambda *_: pytest.fail("a score was left to this process"))
    found, runs, _ = running._run_experiment(FACTS, "small", tmp_path, "cpu", None)
    assert order[:3] == ["vae", "beta-vae", "collect"]
    expected, _ = in_turn
    sweep = Sweep(runs[0].path.parents[1])
    assert not sweep.folder.plan.metrics  # the sweep measured nothing
    with (sweep.path / "table.csv").open(newline="") as handle:
        assert all(float(row["mig/histogram-mean"]) >= 0 for row in csv.DictReader(handle))
    assert read(found.members) == read(expected.members)
    assert read(found.earlier.members) == read(expected.earlier.members)
    for folder in (runs[0], runs[0].snapshot):
        lines = folder.read_lines("scores")
        assert len(lines) == len({str((line["metric"], line["part"], line["details"]["settings"])) for line in lines})


def test_a_metric_that_runs_do_not_allow_is_noted_and_asked_for_once(tmp_path, monkeypatch):
    """It costs no second encoding of these runs."""
    expected = running._run_experiment(ALSO_COHERENCE, "small", tmp_path / "in-turn", "cpu", None)[2]
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    monkeypatch.setattr(measuring, "score_missing", lambda *_: pytest.fail("it was asked for again"))
    _, runs, notes = running._run_experiment(ALSO_COHERENCE, "small", tmp_path / "ahead", "cpu", None)
    assert notes == expected
    assert notes
    assert "coherence/classifier" in scoring.read_left_out(runs[0])


def test_an_experiment_notes_only_the_metrics_that_it_asks_for(tmp_path, monkeypatch):
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    asked = (ALSO_COHERENCE, LEAN, ALSO_COHERENCE)
    first, other, again = (running._run_experiment(facts, "small", tmp_path, "cpu", None)[2] for facts in asked)
    assert first
    assert not other
    assert not again  # nor what is known already


@pytest.fixture
def with_metric(tmp_path, monkeypatch):
    """Register a metric of a user's file, which processes import, too; it raises the error that the text makes."""

    def register(name, error):
        path = tmp_path / f"{name}.py"
        path.write_text(
            "from unbraid.errors import MissingExtraError, RunError\n"
            "from unbraid.metrics import metric\n"
            f'@metric("{name}/own", reference="none")\n'
            f'def fail(evaluation):\n    """Fail."""\n    raise {error}\n'
        )
        monkeypatch.setenv("UNBRAID_WITH", "")
        monkeypatch.setattr(metric, "_entries", dict(metric._entries))  # for this test only
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, name, raising=False)
        load_files([path])
        monkeypatch.setattr(SeriesScoring, "overlaps", True)
        return replace(LEAN, metrics=(*LEAN.metrics, f"{name}/own"))

    return register


def test_a_metric_that_needs_a_package_is_noted_and_asked_for_once(with_metric, tmp_path, monkeypatch):
    facts = with_metric("lacking", 'MissingExtraError("mig", "foo", "bar")')
    monkeypatch.setattr(measuring, "score_missing", lambda *_: pytest.fail("it was asked for again"))
    _, runs, notes = running._run_experiment(facts, "small", tmp_path / "runs", "cpu", None)
    assert notes == ["lacking/own is left out: mig needs foo: pip install 'unbraid[bar]'."]
    assert not scoring.read_left_out(runs[0])  # the package can be installed


def test_a_score_that_fails_ends_the_experiment(with_metric, tmp_path):
    facts = with_metric("failing", 'RunError("this does not fit in memory")')
    with pytest.raises(RunError, match="does not fit in memory"):
        running._run_experiment(facts, "small", tmp_path / "runs", "cpu", None)


def test_stored_runs_are_not_measured_again(in_turn, tmp_path, monkeypatch):
    """Runs of `--runs` may have lost their weights, and keep the scores that they have."""
    _, runs = in_turn
    sweep = shutil.copytree(runs[0].path.parents[1], tmp_path / "stored")
    for path in sweep.glob("runs/*"):
        (path / "model.safetensors").unlink()
        shutil.rmtree(path / "snapshot")
    more = replace(FACTS, metrics=(*FACTS.metrics, "elbo/closed-form"), series={"vae": {"recipe": "vae"}})
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    found, _, _ = running._run_experiment(more, "small", tmp_path / "runs", "cpu", Source.open(sweep))
    assert read(found.members) == read(in_turn[0].members)[: len(found.members)]


def unscored(in_turn, tmp_path):
    """A run without its scores."""
    run = in_turn[1][0]
    copy = RunFolder(tmp_path / "run")
    copy.path.mkdir()
    for path in run.path.iterdir():
        if path.is_file() and path.name != "scores.jsonl":
            (copy.path / path.name).write_bytes(path.read_bytes())
    return copy


def wait_for_scores(run, count):
    end = time.monotonic() + 60
    while len(run.read_lines("scores")) < count:
        assert time.monotonic() < end, "no scores came"
        time.sleep(0.05)


def test_what_is_done_is_stored_if_an_error_ends_the_block(in_turn, tmp_path):
    run = unscored(in_turn, tmp_path)
    with pytest.raises(ZeroDivisionError), ScoresAhead(CPU) as ahead:
        measure_ahead(ahead, [run], (), {"few trees": FOREST})
        wait_for_scores(run, 3)
        _ = 1 / 0
    value = {line["part"]: line["value"] for line in run.read_lines("scores")}["disentanglement"]
    assert value == read(in_turn[0].members)[0]["few trees"]


def test_a_score_that_the_data_do_not_allow_is_refused(in_turn, tmp_path):
    wrong = {"of a colour": ("sap/linear-svm", {"factors": ("colour",)})}
    with ScoresAhead(CPU) as ahead:
        measure_ahead(ahead, [unscored(in_turn, tmp_path)], (), wrong)
        with pytest.raises(UsageError, match="colour"):
            ahead.finish()


def test_what_a_process_leaves_undone_is_measured_when_it_is_asked_for(in_turn, tmp_path, monkeypatch):
    run, score = unscored(in_turn, tmp_path), scoring_pool._Worker.score

    def die(worker, job):
        worker.process.kill()
        return score(worker, job)

    monkeypatch.setattr(scoring_pool._Worker, "score", die)
    with ScoresAhead(CPU) as ahead:
        measure_ahead(ahead, [run], (), MEASURES)
    assert not run.read_lines("scores")
    scores = measure_all([run], MEASURES, CPU)[run]
    assert {name: scores[name].value for name in MEASURES} == {
        name: read(in_turn[0].members)[0][name] for name in MEASURES
    }
