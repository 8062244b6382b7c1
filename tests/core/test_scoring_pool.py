"""Runs that processes score side by side get the scores that one process would give them."""

import pickle
import shutil
import sys

import pytest
import torch

import unbraid
from unbraid import scoring, scoring_pool
from unbraid.errors import DataError, DiskError, MissingExtraError, SettingError, UsageError
from unbraid.metrics import Score, metric
from unbraid.metrics.arrays import RealFactorError
from unbraid.run import score_runs
from unbraid.training.interrupt import Interrupted, Stop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes score on Linux only")

SETTINGS = {"data": "sprites-small", "data.positions": 4, "network": "mlp", "encoder.hidden": (8,)}
SETTINGS |= {"decoder.hidden": (8,), "z": 2, "batch": 16, "steps": 5}
METRICS = ("mig/histogram-mean", "sap/linear-svm", "kl/closed-form")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [unbraid.train("vae", **SETTINGS, seed=seed, root=root).path for seed in range(3)]


@pytest.fixture
def runs(trained, tmp_path):
    """Runs without scores."""
    return [unbraid.load(shutil.copytree(path, tmp_path / path.name)) for path in trained]


@pytest.fixture
def in_processes(monkeypatch):
    """Let processes score whatever they may, and count the jobs that they get."""
    jobs, submit = [], scoring_pool.ScoringPool.submit
    monkeypatch.setattr(scoring, "_need_processes", lambda asked: True)
    monkeypatch.setattr(scoring_pool.ScoringPool, "submit", lambda pool, job: jobs.append(job) or submit(pool, job))
    return jobs


def values(scored):
    return [{score.name: (score.value, score.interval) for score in scores} for _, scores in scored]


def test_processes_give_the_same_scores_in_the_same_order(runs, in_processes):
    expected = values(score_runs(runs, *METRICS, save=False))
    assert not in_processes
    found = list(score_runs(runs, *METRICS, in_processes=True))
    assert [run.path for run, _ in found] == [run.path for run in runs]
    assert values(found) == expected
    assert len(in_processes) == len(runs)
    for run, scores in found:
        assert [score.name for score in run.scores] == [score.name for score in scores]  # stored, each once


def test_rows_settings_and_notes_are_those_of_one_process(runs, in_processes):
    asked = {"rows": 200, "bins": 7, "save": False}
    names = ("mig/histogram-mean", "coherence")
    expected, notes = values(score_runs(runs[:1], *names, **asked)), runs[0].notes
    assert values(score_runs(runs[:1], *names, **asked, in_processes=True)) == expected
    assert runs[0].notes == notes
    assert notes
    assert not runs[0].scores


def test_what_only_this_process_knows_is_measured_here(runs, in_processes, monkeypatch):
    monkeypatch.setattr(metric, "_entries", dict(metric._entries))

    @metric("answer/own", reference="none")
    def answer(evaluation):
        """Return the answer."""
        return Score("answer", "own", 42.0, len(evaluation))

    assert [scores[0].value for _, scores in score_runs(runs, "answer/own", in_processes=True)] == [42.0] * 3
    assert [run.scores[0].value for run in runs] == [42.0] * 3


def test_a_process_that_dies_leaves_its_run_to_this_one(runs, in_processes, monkeypatch):
    score, deaths = scoring_pool._Worker.score, []

    def die_once(worker, job):
        if not deaths:
            deaths.append(worker.process.kill())
        return score(worker, job)

    monkeypatch.setattr(scoring_pool._Worker, "score", die_once)
    assert all(len(found) == 1 for found in values(score_runs(runs, "kl/closed-form", in_processes=True)))
    assert deaths


def test_a_request_that_is_wrong_raises_its_error(runs, in_processes):
    with pytest.raises(UsageError, match="colour"):
        list(score_runs(runs, "sap/linear-svm", factors=("colour",), in_processes=True))


def test_a_stop_ends_the_processes(runs, in_processes):
    stop = Stop()
    stop.requested = True
    subjects = [run.subject() for run in runs]
    with pytest.raises(Interrupted):
        list(scoring.score_subjects(subjects, METRICS, stop=stop, in_processes=True))


def test_processes_are_for_many_costly_scores_on_a_gpu(runs):
    costly = {"dci/booster": {}, "infomec/knn": {}}
    asked = [(run.subject(), costly) for run in runs] * 10
    assert not scoring._need_processes(asked)  # these are on the CPU


@pytest.mark.parametrize(
    "error",
    [
        UsageError("a"),
        SettingError("b"),
        DataError("c"),
        MissingExtraError("MIG", "foo", "bar"),
        RealFactorError("x is real."),
        DiskError("the disk is full"),
    ],
)
def test_errors_travel_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_as_many_processes_as_cores_jobs_and_memory_allow(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert scoring_pool.count_processes(cpu, jobs=3, cores=8) == 3
    assert scoring_pool.count_processes(cpu, jobs=30, cores=8) == 8
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * 2**30, 24 * 2**30))
    assert scoring_pool.count_processes(cuda, jobs=30, cores=8) == 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 24 * 2**30))
    assert scoring_pool.count_processes(cuda, jobs=30, cores=8) == 1
