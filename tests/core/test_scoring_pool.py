"""Runs that processes score side by side get the scores that one process would give them."""

import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import unbraid
from unbraid import run as run_module, scoring, scoring_pool
from unbraid.errors import DataError, DiskError, MissingExtraError, SettingError, UsageError
from unbraid.gpu_sharing import SharedGpu
from unbraid.metrics import Score, metric
from unbraid.metrics.arrays import RealFactorError
from unbraid.plugins import load_files
from unbraid.run import score_runs
from unbraid.threads import some_threads
from unbraid.training.interrupt import Interrupted, Stop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes score on Linux only")

CPU = torch.device("cpu")

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


def test_a_process_that_dies_leaves_the_rest_of_its_run_to_this_one(runs, in_processes, tmp_path, monkeypatch):
    """What it has stored is not measured again, except the last metric, of which it may have stored a part."""
    path = tmp_path / "deadly.py"
    path.write_text(
        "import os, sys\n"
        "from unbraid.metrics import Score, metric\n"
        '@metric("deadly/own", reference="none")\n'
        'def die(evaluation):\n    """Die in a process."""\n'
        '    if sys.argv[0].endswith("scoring_worker.py"):\n        os._exit(1)\n'
        '    return Score("deadly", "own", 1.0, len(evaluation))\n'
    )
    monkeypatch.setenv("UNBRAID_WITH", "")
    monkeypatch.setattr(metric, "_entries", dict(metric._entries))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "deadly", raising=False)
    load_files([path])
    ((run, scores),) = score_runs(runs[:1], "kl/closed-form", "reconstruction/l1", "deadly/own")
    asked = ["kl/closed-form", "reconstruction/l1", "deadly/own"]
    assert [f"{score.metric}/{score.protocol}" for score in scores] == asked
    stored = [f"{line['metric']}/{line['protocol']}" for line in run.folder.read_lines("scores")]
    assert stored == [asked[0], asked[1], asked[1], asked[2]]


def test_a_setting_that_cannot_be_sent_gives_its_usual_error(runs, in_processes):
    with pytest.raises(SettingError, match="bins"):
        list(score_runs(runs[:1], "mig/histogram-mean", bins=lambda: 1))


def test_a_file_of_the_working_folder_is_not_imported(runs, in_processes, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scoring_pool, "_score_rest", lambda *_: pytest.fail("the process died"))
    assert len(list(score_runs(runs[:1], "kl/closed-form"))) == 1


class IdleService(SharedGpu):
    """A service that does nothing."""

    def __init__(self):
        self.environment = {}

    def stop(self):
        pass


@pytest.fixture
def workers(monkeypatch):
    """All processes that are started."""
    started, start = [], scoring_pool._Worker.__init__
    monkeypatch.setattr(
        scoring_pool._Worker, "__init__", lambda self, *given: started.append(self) or start(self, *given)
    )
    return started


def test_an_error_of_the_caller_ends_the_processes(runs, in_processes, workers):
    with pytest.raises(UsageError, match="modalities"):
        list(score_runs(runs, "coherence/classifier"))
    assert workers
    assert all(worker.process.poll() is not None for worker in workers)


def test_a_pool_that_is_closed_at_once_starts_nothing_more(runs, workers):
    """Through a service a process that does not start is started again without it, but not after the end."""
    pool = scoring_pool.ScoringPool(CPU, 2)
    pool._shared, pool._uses_shared = IdleService(), True
    begun = [pool.submit(scoring.Job(run.path, run.path, ({"kl/closed-form": {}},))) for run in runs]
    end = time.monotonic() + 30
    while not workers and time.monotonic() < end:
        time.sleep(0.01)
    pool.close()
    assert workers
    assert len(workers) <= 2
    assert all(worker.process.poll() is not None for worker in workers)
    assert all(future.cancelled() or future.result() is None for future in begun)
    assert not any(run.scores for run in runs)


def test_processes_that_never_work_are_tried_once(runs, workers, monkeypatch):
    monkeypatch.setattr(scoring_pool._Worker, "is_ready", lambda self: False)
    with pytest.warns(UserWarning, match="this one computes them"), scoring_pool.ScoringPool(CPU, 1) as pool:
        begun = [pool.submit(scoring.Job(run.path, run.path, ({"kl/closed-form": {}},))) for run in runs]
        assert [future.result() for future in begun] == [None] * 3
    assert len(workers) == 1


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed(runs):
    code = (
        "import os, sys, torch; from pathlib import Path; from unbraid import scoring, scoring_pool\n"
        "pool = scoring_pool.ScoringPool(torch.device('cpu'), 1); worker = pool._start_worker()\n"
        "print(worker.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    status = Path(f"/proc/{int(ran.stdout)}")
    for _ in range(100):
        if not status.exists():
            return
        time.sleep(0.1)
    pytest.fail("the process is still there")


def test_a_request_that_is_wrong_raises_its_error(runs, in_processes):
    with pytest.raises(UsageError, match="colour"):
        list(score_runs(runs, "sap/linear-svm", factors=("colour",)))


def test_a_stop_ends_the_processes(runs, workers):
    stop, jobs = Stop(), [scoring.Job(run.path, run.path, ({"kl/closed-form": {}},)) for run in runs]
    results = scoring_pool.score_in_processes(jobs, CPU, stop)
    assert next(results)
    stop.requested = True
    with pytest.raises(Interrupted):
        list(results)
    assert all(worker.process.poll() is not None for worker in workers)


def test_processes_are_for_many_costly_scores_on_a_gpu():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    costly = {"downstream/logistic": {}, "infomec/knn": {}}
    with some_threads(4):
        assert scoring_pool.need_processes(cuda, [costly] * 10)
        assert not scoring_pool.need_processes(cpu, [costly] * 10)
        assert not scoring_pool.need_processes(cuda, [costly] * 3)
        assert not scoring_pool.need_processes(cuda, [costly, {}, {}, {}] * 2)
        assert not scoring_pool.need_processes(cuda, [{"mig/histogram-mean": {}}] * 10)
        assert not scoring_pool.need_processes(cuda, [{"dci/random-forest": {}}] * 100)  # the GPU grows them
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
    cuda = torch.device("cuda")
    assert scoring_pool.count_processes(CPU, jobs=3, cores=8) == 3
    assert scoring_pool.count_processes(CPU, jobs=30, cores=8) == 8
    monkeypatch.setattr(scoring_pool, "free_bytes", lambda device: 10 * 2**30)
    assert scoring_pool.count_processes(cuda, jobs=30, cores=8) == 3
    assert scoring_pool.count_processes(cuda, jobs=30, cores=8, share=0.5) == 1
    monkeypatch.setattr(scoring_pool, "free_bytes", lambda device: 2**30)
    assert scoring_pool.count_processes(cuda, jobs=30, cores=8) == 1


def test_jobs_on_a_gpu_begin_with_different_metrics(runs, monkeypatch):
    """Each job measures all metrics and begins at its own place in the list."""
    jobs, folder = [], runs[0].folder
    monkeypatch.setattr(scoring_pool.ScoringPool, "_score", lambda pool, job: jobs.append(job))
    monkeypatch.setattr(SharedGpu, "start", lambda processes: None)
    with scoring_pool.ScoringPool(torch.device("cuda"), 3) as pool:
        for _ in range(4):
            pool.submit(scoring.Job(folder.path, folder.root, ({name: {} for name in METRICS},))).result()
    stored = []
    for job in jobs:
        before = len(runs[0].scores)
        job.score(runs[0].subject(None))
        stored.append([f"{score.metric}/{score.protocol}" for score in runs[0].scores[before:]])
    first, second, third = METRICS
    assert stored == [[first, second, third], [second, third, first], [third, first, second], [first, second, third]]
