"""Scores that processes compute while the next series trains are those that are computed after each series."""

import csv
import shutil
import sys
from dataclasses import replace

import pytest
import torch

from unbraid import scores_ahead, scoring
from unbraid.errors import MissingExtraError, RunError, UsageError
from unbraid.experiments import Scale, running
from unbraid.experiments.base import Experiment
from unbraid.experiments.measuring import measure_ahead, measure_all
from unbraid.experiments.series_scoring import SeriesScoring
from unbraid.experiments.stored_runs import Source
from unbraid.metrics import background
from unbraid.scores_ahead import ScoresAhead
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep
from unbraid.threads import some_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

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
    order, train, collect = [], running._Training.run_series, ScoresAhead._finish_first
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    monkeypatch.setattr(running._Training, "run_series", lambda *own: order.append(own[1]) or train(*own))
    monkeypatch.setattr(ScoresAhead, "_finish_first", lambda self: order.append("collect") or collect(self))
    with some_threads(2):
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
    encoded, encode = [], scoring._encode
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    monkeypatch.setattr(scoring, "_encode", lambda some: encoded.extend(some) or encode(some))
    with some_threads(2):
        _, runs, notes = running._run_experiment(ALSO_COHERENCE, "small", tmp_path / "ahead", "cpu", None)
    assert notes == expected
    assert notes
    assert len(encoded) == 2 * len(runs)  # each run and its snapshot


def test_an_experiment_notes_only_the_metrics_that_it_asks_for(tmp_path, monkeypatch):
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    asked = (ALSO_COHERENCE, LEAN, ALSO_COHERENCE)
    first, other, again = (running._run_experiment(facts, "small", tmp_path, "cpu", None)[2] for facts in asked)
    assert first
    assert not other
    assert not again  # nor what is known already


def fail_with(error, monkeypatch):
    """Let a metric fail with an error, and count the models that are encoded."""
    encoded, encode, measure = [], scoring._encode, scoring._measure_within_memory

    def fail(name, *rest):
        if name == "mig/histogram-mean":
            raise error
        return measure(name, *rest)

    monkeypatch.setattr(scoring, "_measure_within_memory", fail)
    monkeypatch.setattr(scoring, "_encode", lambda some: encoded.extend(some) or encode(some))
    monkeypatch.setattr(SeriesScoring, "overlaps", True)
    return encoded


def test_a_metric_that_needs_a_package_is_noted_and_asked_for_once(tmp_path, monkeypatch):
    encoded = fail_with(MissingExtraError("mig", "foo", "bar"), monkeypatch)
    with some_threads(2):
        _, runs, notes = running._run_experiment(LEAN, "small", tmp_path, "cpu", None)
    assert notes == ["mig/histogram-mean is left out: mig needs foo: pip install 'unbraid[bar]'."]
    assert len(encoded) == 2 * len(runs)
    assert not scoring.read_left_out(runs[0])  # the package can be installed


def test_a_score_that_fails_ends_the_experiment(tmp_path, monkeypatch):
    fail_with(RunError("this does not fit in memory"), monkeypatch)
    with some_threads(2), pytest.raises(RunError, match="does not fit in memory"):
        running._run_experiment(LEAN, "small", tmp_path, "cpu", None)


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


def test_what_is_done_is_stored_if_an_error_ends_the_block(in_turn, tmp_path):
    run, device = unscored(in_turn, tmp_path), torch.device("cpu")
    with pytest.raises(ZeroDivisionError), some_threads(2), ScoresAhead() as ahead:
        measure_ahead(ahead, [run], (), {"few trees": FOREST}, device)
        (((scoring,), _),) = ahead._under_way
        while not scoring.schedule.is_done("dci/random-forest"):
            pass
        assert not run.read_lines("scores")
        _ = 1 / 0
    value = {line["part"]: line["value"] for line in run.read_lines("scores")}["disentanglement"]
    assert value == read(in_turn[0].members)[0]["few trees"]


def test_ctrl_c_while_scores_are_collected_keeps_those_that_are_done(in_turn, tmp_path, monkeypatch):
    run, calls, collect = unscored(in_turn, tmp_path), [], background._Crew.collect
    both = {name: MEASURES[name] for name in ("few trees", "fewer rows")}

    def interrupt(crew, place):
        calls.append(place)
        if len(calls) == 1:
            while not all(crew.has(each) for each in (0, 1)):
                pass
            raise KeyboardInterrupt
        return collect(crew, place)

    monkeypatch.setattr(background._Crew, "collect", interrupt)
    with pytest.raises(KeyboardInterrupt), some_threads(2), ScoresAhead() as ahead:
        measure_ahead(ahead, [run], (), both, torch.device("cpu"))
        ahead.finish()
    assert len([line for line in run.read_lines("scores") if line["part"] == "disentanglement"]) == 2


def test_a_score_that_the_data_do_not_allow_is_refused_at_once(in_turn, tmp_path):
    run = unscored(in_turn, tmp_path)
    wrong = {"of a colour": ("sap/linear-svm", {"factors": ("colour",)})}
    with pytest.raises(UsageError, match="colour"), some_threads(2), ScoresAhead() as ahead:
        measure_ahead(ahead, [run], (), wrong, torch.device("cpu"))
        pytest.fail("nothing was refused")


def test_what_is_not_done_is_dropped_and_measured_when_it_is_asked_for(in_turn, tmp_path, monkeypatch):
    run, device = unscored(in_turn, tmp_path), torch.device("cpu")
    monkeypatch.setattr(background._Crew, "has", lambda *_: False)
    with pytest.raises(KeyboardInterrupt), some_threads(2), ScoresAhead() as ahead:
        measure_ahead(ahead, [run], (), MEASURES, device)
        raise KeyboardInterrupt
    assert {line["metric"] for line in run.read_lines("scores")} == {"kl"}  # measured at once
    scores = measure_all([run], MEASURES, device)[run]
    assert {name: scores[name].value for name in MEASURES} == {
        name: read(in_turn[0].members)[0][name] for name in MEASURES
    }


def test_no_more_than_two_parts_are_under_way(in_turn, tmp_path, monkeypatch):
    monkeypatch.setattr(scores_ahead, "split_for_encoding", lambda subjects: [[subject] for subject in subjects])
    most = []
    collect = ScoresAhead._finish_first
    monkeypatch.setattr(ScoresAhead, "_finish_first", lambda self: most.append(len(self._under_way)) or collect(self))
    run = unscored(in_turn, tmp_path)
    with some_threads(2), ScoresAhead() as ahead:
        measure_ahead(ahead, [run] * 4, (), {"few trees": FOREST}, torch.device("cpu"))
    assert most == [2, 2, 2, 1]
    assert len([line for line in run.read_lines("scores") if line["part"] == "disentanglement"]) == 4
