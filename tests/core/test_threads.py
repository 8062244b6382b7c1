"""What is said about threads beside other programs."""

import pytest
import torch

from unbraid import threads


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of two cores and a run of two threads; call it with the number of tasks that want a core."""
    monkeypatch.setattr(threads, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    threads.say_if_cores_are_busy.cache_clear()
    yield lambda tasks: threads.LOAD.write_text(f"0.5 0.4 0.3 {tasks}/200 4711\n")
    threads.say_if_cores_are_busy.cache_clear()


def test_busy_cores_are_told_once(machine, capsys):
    machine(2)  # this program and another one
    threads.say_if_cores_are_busy()
    assert "OMP_WAIT_POLICY=passive" in capsys.readouterr().err
    threads.say_if_cores_are_busy()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("case", ["idle", "not Linux", "chosen", "one thread"])
def test_nothing_is_said_where_nothing_is_to_be_done(machine, capsys, monkeypatch, case):
    if case != "not Linux":
        machine(1 if case == "idle" else 2)
    if case == "chosen":
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    if case == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    threads.say_if_cores_are_busy()
    assert capsys.readouterr().err == ""
