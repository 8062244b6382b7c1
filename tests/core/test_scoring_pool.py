"""Runs that processes score side by side get the scores that one process would give them."""

import pickle
import shutil
import sys

import pytest
import torch

import unbraid
from unbraid import run as run_module, scoring, scoring_pool
from unbraid.errors import DataError, DiskError, MissingExtraError, SettingError, UsageError
from unbraid.metrics import Score, metric
from unbraid.metrics.arrays import RealFactorError
from unbraid.run import score_runs
from unbraid.threads import some_threads
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
    monkeypatch.setattr(run_module, "need_processes", lambda device, requests: True)
    monkeypatch.setattr(scoring_pool.ScoringPool, "submit", lambda pool, job: jobs.append(job) or submit(pool, job))
    return jobs


def values(scored):
    return [{score.name: (score.value, score.interval) for score in scores} for _, scores in scored]


def test_processes_give_the_same_scores_in_the_same_order(runs, request):
    expected = values(score_runs([unbraid.load(run.path) for run in runs], *METRICS, save=False))
    in_processes = request.getfixturevalue("in_processes")
    found = list(score_runs(runs, *METRICS))
    assert [run.path for run, _ in found] == [run.path for run in runs]
    assert values(found) == expected
    assert len(in_processes) == len(runs)
    for run, scores in found:
        assert [score.name for score in run.scores] == [score.name for score in scores]  # stored, each once


def test_rows_settings_and_notes_are_those_of_one_process(runs, request):
    asked = {"rows": 200, "bins": 7, "save": False}
    names, here = ("mig/histogram-mean", "coherence"), unbraid.load(runs[0].path)
    expected, notes = values(score_runs([here], *names, **asked)), here.notes
    assert request.getfixturevalue("in_processes") == []
    assert values(score_runs(runs[:1], *names, **asked)) == expected
    assert runs[0].notes == notes
    assert notes
    assert not runs[0].scores


def test_what_only_this_process_knows_is_measured_here(runs, in_processes, monkeypatch):
    monkeypatch.setattr(metric, "_entries", dict(metric._entries))

    @metric("answer/own", reference="none")
    def answer(evaluation):
        """Return the answer."""
        return Score("answer", "own", 42.0, len(evaluation))

    assert [scores[0].value for _, scores in score_runs(runs, "answer/own")] == [42.0] * 3
    assert [run.scores[0].value for run in runs] == [42.0] * 3


def test_a_model_that_was_changed_in_memory_is_scored_here(runs, in_processes):
    before = runs[0].score("kl/closed-form", save=False)[0].value
    with torch.no_grad():
        for parameter in runs[0].model.parameters():
            parameter.zero_()
    assert len(in_processes) == 1
    assert runs[0].score("kl/closed-form", save=False)[0].value != before
    assert len(in_processes) == 1


def test_a_process_that_dies_leaves_its_run_to_this_one(runs, in_processes, monkeypatch):
    score, deaths = scoring_pool._Worker.score, []

    def die_once(worker, job):
        if not deaths:
            deaths.append(worker.process.kill())
        return score(worker, job)

    monkeypatch.setattr(scoring_pool._Worker, "score", die_once)
    assert all(len(found) == 1 for found in values(score_runs(runs, "kl/closed-form")))
    assert deaths


def test_a_request_that_is_wrong_raises_its_error(runs, in_processes):
    with pytest.raises(UsageError, match="colour"):
        list(score_runs(runs, "sap/linear-svm", factors=("colour",)))


def test_a_stop_ends_the_processes(runs, in_processes):
    stop, jobs = Stop(), [scoring.Job(run.path, ({"kl/closed-form": {}},)) for run in runs]
    results = scoring_pool.score_in_processes(jobs, torch.device("cpu"), stop)
    assert next(results)
    stop.requested = True
    with pytest.raises(Interrupted):
        list(results)


def test_processes_are_for_many_costly_scores_on_a_gpu():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    costly = {"dci/booster": {}, "infomec/knn": {}}
    with some_threads(4):
        assert scoring_pool.need_processes(cuda, [costly] * 10)
        assert not scoring_pool.need_processes(cpu, [costly] * 10)
        assert not scoring_pool.need_processes(cuda, [costly] * 3)
        assert not scoring_pool.need_processes(cuda, [costly, {}, {}, {}] * 2)
        assert not scoring_pool.need_processes(cuda, [{"mig/histogram-mean": {}}] * 10)
        assert not scoring_pool.need_processes(cuda, [{**costly, "udr/spearman": {}}] * 10)
    with some_threads(1):
        assert not scoring_pool.need_processes(cuda, [costly] * 10)


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
