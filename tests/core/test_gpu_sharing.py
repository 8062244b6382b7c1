"""The service that shares a GPU is started for processes of one program, and ends with it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.core.test_scoring_pool import IdleService
from unbraid import scoring_pool
from unbraid.gpu_sharing import PIPES, PROGRAM, SHARE, SharedGpu

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service exists on Linux only")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in place of NVIDIA's, which notes how it is called; return the function that reads these notes."""

    def install(code=0):
        calls, program = tmp_path / "calls", tmp_path / "bin" / PROGRAM
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\necho "$@ $(cat) ${PIPES}" >> {calls}\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv(PIPES, raising=False)
        return lambda: [line.split() for line in calls.read_text().splitlines()] if calls.exists() else []

    return install


def test_the_service_is_started_and_stopped(stand_in):
    read_calls = stand_in()
    service = SharedGpu.start(4)
    folder = service.environment[PIPES]
    assert read_calls() == [["-d", folder]]
    assert Path(folder).is_dir()
    service.stop()
    assert read_calls() == [["-d", folder], ["quit", folder]]
    assert not Path(folder).exists()


@pytest.mark.parametrize(("processes", "own", "percent"), [(2, None, "50"), (16, None, "30"), (16, "80", "80")])
def test_each_process_gets_a_share_of_the_gpu(stand_in, monkeypatch, processes, own, percent):
    stand_in()
    monkeypatch.delenv(SHARE, raising=False)
    if own:
        monkeypatch.setenv(SHARE, own)
    service = SharedGpu.start(processes)
    service.stop()
    assert service.environment[SHARE] == percent


def test_a_service_that_fails_is_not_used(stand_in):
    read_calls = stand_in(code=1)
    assert SharedGpu.start(4) is None
    (call,) = read_calls()
    assert not Path(call[-1]).exists()


def test_a_service_of_the_user_is_used_as_it_is(stand_in, monkeypatch):
    read_calls = stand_in()
    monkeypatch.setenv(PIPES, "/somewhere")
    assert SharedGpu.start(4) is None
    assert not read_calls()


def test_most_machines_have_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert SharedGpu.start(4) is None


@pytest.mark.parametrize("kill", ["os.kill(os.getpid(), 9)", "os.killpg(0, 15)", "os.killpg(0, 1)"])
def test_the_service_ends_with_a_program_that_is_killed(stand_in, kill):
    read_calls = stand_in()
    code = f"import os; from unbraid.gpu_sharing import SharedGpu; SharedGpu.start(4); {kill}"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60, start_new_session=True)
    for _ in range(200):
        if len(read_calls()) == 2:
            break
        time.sleep(0.05)
    assert [call[0] for call in read_calls()] == ["-d", "quit"]


def test_processes_do_without_a_service_that_does_not_work(monkeypatch):
    """A process that cannot use the device through the service is started again without it, and so are later ones."""
    tried = []
    monkeypatch.setattr(scoring_pool._Worker, "__init__", lambda self, device, shared: tried.append(shared))
    monkeypatch.setattr(scoring_pool._Worker, "is_ready", lambda self: tried[-1] is None)
    monkeypatch.setattr(scoring_pool._Worker, "end", lambda self: None)
    service = IdleService()
    with scoring_pool.ScoringPool(torch.device("cpu"), 1) as pool:
        pool._shared, pool._uses_shared = service, True
        assert pool._start_worker() is not None
        assert tried == [service, None]
        pool._start_worker()
        assert tried == [service, None, None]
