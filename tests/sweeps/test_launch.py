"""Groups of a sweep on workers: Ray, Slurm, disks of their own, and workers that die."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import unbraid as ub
from tests.support.command import SOURCE
from tests.support.messages import names, naming
from tests.support.sweeps import WORDS, sweep, weights
from unbraid import atomic
from unbraid.errors import RunError, UsageError
from unbraid.sweeps import run as leading, worker as working
from unbraid.sweeps.folder import SweepFolder
from unbraid.training import Cadence, launch


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("sweep"))


def assert_same_weights(first, second):
    assert weights(first).keys() == weights(second).keys()
    for run, tensors in weights(first).items():
        assert all(torch.equal(tensor, weights(second)[run][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(("on", "module", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_a_missing_package_is_named_with_its_extra(on, module, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=naming(module, f"pip install 'unbraid[{extra}]'")):
        sweep(tmp_path, on=on)


def test_a_worker_with_a_disk_of_its_own_hands_files_back(made, tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path / "driver")
    monkeypatch.setattr(leading, "_run_jobs", lambda *given: [])
    sweep(tmp_path, name="driver")
    (group,) = folder.list_groups()
    job = launch.GroupJob(str(folder.path), group, "cpu", tuple(folder.files_for_worker(group)))
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path / "worker"))
    notes, files = launch._run_on_ray_worker(working.run_group, job, launch._read_files(job), "no such file")
    assert notes == []
    assert not folder.run_folder(folder.list_runs(group)[0]).finished, "nothing was written where the worker cannot see"
    for name, content in files.items():
        atomic.write_bytes(folder.path / name, content)
    arrived = ub.Sweep(folder.path)
    assert [row["status"] for row in arrived.table] == ["finished"] * 4
    for run, tensors in weights(arrived).items():
        assert all(torch.equal(tensor, weights(made)[run][name]) for name, tensor in tensors.items())


def test_a_worker_forgets_what_was_asked_for_before_but_not_how_far_it_came(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    seen = {}

    def look(folder, group, device):
        seen.update({name: (Path(folder) / name).read_text() for name in files})
        return []

    files = ("sweep.yaml", "groups/a/group.json", "runs/x/status.json")
    job = launch.GroupJob("/elsewhere", "a", "cpu", files)
    for word in ("old", "new"):
        with monkeypatch.context() as patch:
            patch.setattr(launch.shutil, "rmtree", lambda *given, **options: None)
            launch._run_on_ray_worker(look, job, {name: word.encode() for name in files}, "no such file")
    assert list(seen.values()) == ["new", "new", "old"]


def fail(folder, group, device):
    raise RunError("the disk is full") if group == "known" else ValueError("a bug\nin line 3")


def test_a_slurm_job_returns_its_error(tmp_path):
    known = launch.Requeued(fail)(launch.GroupJob(str(tmp_path), "known"))
    assert known.error == "the disk is full"
    other = launch.Requeued(fail)(launch.GroupJob(str(tmp_path), "other"))
    assert names(other.error, "ValueError", "in line 3", tmp_path / "groups/other/error.txt")
    assert "fail" in (tmp_path / "groups/other/error.txt").read_text()


def test_a_slurm_job_that_was_killed_gives_its_last_words_and_its_log():
    handle = SimpleNamespace(job_id="7_1", state="TIMEOUT", paths=SimpleNamespace(stderr="7_1.err"))
    trace = "Traceback:\n  File x\nValueError: a bug"
    ruler = "----------------------"
    failed = RuntimeError(f"Job failed with trace:\n{ruler}\n{trace}\n{ruler}\nor at paths:\n  - 7.err\n  - 7.out")
    assert names(launch._describe_slurm_failure(failed, handle), "7_1", "ValueError: a bug", "7_1.err")
    lost = RuntimeError("Job 7_1 with path x\nhas not produced any output (state: TIMEOUT)")
    assert names(launch._describe_slurm_failure(lost, handle), "7_1", "TIMEOUT", "7_1.err")


@pytest.mark.slow
def test_a_failing_slurm_job_returns_its_error_from_the_cluster(tmp_path):
    pytest.importorskip("submitit")
    jobs = [launch.GroupJob(str(tmp_path), group, "cpu") for group in ("known", "unknown")]
    outcomes = launch.launch(fail, jobs, "slurm", {"cluster": "local", "timeout_min": 5})
    errors = {outcome.job.group: outcome.error for outcome in outcomes}
    assert errors["known"] == "the disk is full"
    assert names(errors["unknown"], "ValueError", "in line 3")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_slurm_jobs_train_and_are_gathered(cluster, made, tmp_path):
    pytest.importorskip("submitit")
    swept = sweep(tmp_path, on="slurm", members=2, slurm={"cluster": cluster, "partition": "small", "timeout_min": 5})
    assert_same_weights(swept, made)
    assert not list(swept.path.glob("groups/*"))
    assert list(swept.path.glob("slurm/*"))
    with pytest.raises(UsageError, match="colour"):
        sweep(tmp_path, seed=range(3), on="slurm", slurm={"cluster": cluster, "colour": "red"})


def worker_of(group):
    """Process that does a group at this moment: Ray names a worker after its task."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"ray::unbraid-{group}".encode() in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue  # it has just ended
    return None


class Killer(threading.Thread):
    """Kills, once, the worker of the first group that has a checkpoint and is not at its end."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.killed, self.over = SweepFolder(folder), None, threading.Event()

    def run(self):
        while self.killed is None and not self.over.wait(0.02):
            for group in self.folder.list_groups():
                process = worker_of(group) if self.folder.group_folder(group).checkpoints() else None
                if process is not None:
                    os.kill(process, signal.SIGKILL)
                    self.killed = group, process, time.time()
                    return


@pytest.fixture
def two_workers():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker in /proc")
def test_a_killed_ray_worker_loses_no_run(two_workers, tmp_path):
    settings = {"steps": 200, "members": 2, "cadence": Cadence(checkpoint_steps=20)}
    killer = Killer(tmp_path / "one")
    killer.start()
    swept = sweep(tmp_path, on="ray", **settings)
    killer.over.set()
    killer.join()
    assert killer.killed is not None, "no worker was killed: the groups were too quick"
    assert [row["status"] for row in swept.table] == ["finished"] * 4
    assert all(member.scores for member in swept.members)
    assert not list(swept.path.glob("groups/*"))
    assert not list(swept.path.glob(".seen-*"))
    for run in swept.runs:
        steps = [line["step"] for line in run.history]
        assert steps == sorted(set(steps))
        assert steps[-1] == 200
    assert_same_weights(swept, sweep(tmp_path / "here", **settings))


@pytest.mark.slow
def test_ctrl_c_stops_the_tasks_after_their_checkpoints(tmp_path):
    pytest.importorskip("ray")
    places = ["--on", "ray", "--members", "1", "--name", "one", "--device", "cpu"]
    command = [sys.executable, "-m", "unbraid", "sweep", "beta-vae", *WORDS[:-1], "steps=1000000", "beta=1,4", *places]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    folder, deadline = SweepFolder(tmp_path / "runs/one"), time.monotonic() + 120
    while not list(folder.path.glob("runs/*/history.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert names(told, "runs/one")
    assert any(folder.group_folder(group).checkpoints() for group in folder.list_groups())


@pytest.mark.slow
def test_ray_starts_here_where_there_is_no_cluster(made, tmp_path):
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    swept = sweep(tmp_path, on="ray")
    assert_same_weights(swept, made)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_failing_ray_task_returns_its_error(two_workers, tmp_path):
    jobs = [launch.GroupJob(str(tmp_path), group, "cpu") for group in ("known", "unknown")]
    errors = {outcome.job.group: outcome.error for outcome in launch.launch(fail, jobs, "ray")}
    assert errors["known"] == "the disk is full"
    assert names(errors["unknown"], "ValueError", "in line 3")
