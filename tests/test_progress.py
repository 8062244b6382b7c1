"""Progress is a bar in a terminal, a block in a notebook and lines in a log, only for long work, never when quiet."""

import sys
import time
from types import SimpleNamespace

import pytest

from unbraid import Score, load, metric, progress as module
from unbraid.papers import reproduce
from unbraid.progress import format_seconds, name_slow_work, progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now.time)
    return now


@pytest.mark.parametrize(("quiet", "shown"), [("", True), ("1", False)])
def test_terminal_has_a_bar(monkeypatch, capsys, quiet, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("UNBRAID_QUIET", quiet)
    monkeypatch.setenv("TERM", "xterm")
    with progress("Working", 3, delay=0.0) as bar:
        for _ in range(3):
            bar.advance()
    assert bar.done == 3
    captured = capsys.readouterr()
    assert ("Working" in captured.err) == shown
    assert captured.out == ""


def test_short_work_shows_nothing(monkeypatch, capsys):
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with progress("Working", None) as bar:
            bar.advance(5)
        assert capsys.readouterr().err == ""


def test_log_has_a_line_now_and_then_with_rate_terms_and_time_left(clock, capsys):
    with progress("Working", 100, delay=0.0) as bar:
        bar.terms = "loss 3.20  1,000 images/s"
        for _ in range(100):
            clock.time += 1
            bar.advance()
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[0] == "Working: 5 of 100 (5%)  1 min 35 s left  loss 3.20  1,000 images/s"
    assert lines[1].startswith("Working: 15 of 100 (15%)  1 min 25 s left")
    assert lines[-1] == "Working: 100 of 100 (100%)  took 1 min 40 s  loss 3.20  1,000 images/s"
    assert len(lines) == 11


def test_resumed_work_does_not_count_what_was_done_before(clock, capsys):
    with progress("Working", 100, done=90) as bar:
        for _ in range(6):
            clock.time += 1
            bar.advance()
    assert "Working: 95 of 100 (95%)  5 s left" in capsys.readouterr().err


def test_the_first_unit_which_may_compile_is_no_measure_of_the_others(clock, capsys):
    with progress("Working", 100) as bar:
        clock.time += 4
        bar.advance()
        clock.time += 1
        bar.advance()
    assert "Working: 2 of 100 (2%)  1 min 38 s left" in capsys.readouterr().err


def test_log_is_silent_when_quiet(clock, monkeypatch, capsys):
    monkeypatch.setenv("UNBRAID_QUIET", "1")
    with progress("Working", 2) as bar:
        clock.time += 60
        bar.advance()
    assert capsys.readouterr().err == ""


def test_notebook_has_one_block_that_changes(clock, monkeypatch):
    shown, updates = [], []
    handle = SimpleNamespace(update=updates.append)
    kernel = SimpleNamespace(kernel=object())  # the shell of a notebook has one, that of a terminal has none
    display = SimpleNamespace(display=lambda drawing, display_id: shown.append(drawing) or handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress("<Working>", 4, delay=0.0) as bar:
        for _ in range(4):
            clock.time += 1
            bar.advance()
    assert len(shown) == 1
    assert [drawing.done for drawing in updates] == [2, 3, 4, 4]
    assert '<progress max="4" value="4">' in updates[-1]._repr_html_()
    assert "&lt;Working&gt;: 4 of 4" in updates[-1]._repr_html_()


@pytest.mark.parametrize(("quiet", "said"), [("", ["reading", "writing"]), ("1", [])])
def test_slow_work_says_what_it_does(monkeypatch, capsys, quiet, said):
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(module, "LOG_SECONDS", 0.01)
    monkeypatch.setenv("UNBRAID_QUIET", quiet)
    with name_slow_work("reading") as work:
        time.sleep(0.2)
        work.doing = "writing"
        time.sleep(0.2)
    assert list(dict.fromkeys(capsys.readouterr().err.splitlines())) == said
    time.sleep(0.05)
    assert capsys.readouterr().err == "", "it ends with the work"


def test_quick_work_and_work_with_a_counter_say_nothing(monkeypatch, capsys):
    with name_slow_work("reading"):
        pass
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(module, "FIRST_LINE_SECONDS", 0.0)
    with progress("counted", 2, delay=0.0) as bar:
        bar.advance()
        with name_slow_work("reading"):
            time.sleep(0.1)
    assert "reading" not in capsys.readouterr().err


def test_a_slow_score_is_named_while_it_is_computed(monkeypatch, capsys):
    @metric("slow/x")
    def slow(evaluation):
        time.sleep(0.3)
        assert "demo: computing slow/x (1 of 1)" in capsys.readouterr().err
        return Score("slow", "x", 1.0, samples=1)

    monkeypatch.setattr(module, "SILENT_SECONDS", 0.02)
    run = load("demo", device="cpu")
    try:
        run.score("slow/x", save=False)
    finally:
        metric.remove("slow/x")


def test_a_slow_measurement_of_a_paper_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.001)
    folders = {"root": tmp_path / "runs", "out": tmp_path / "results"}
    reproduce("esmaeili2018/decomposition", scale="smoke", device="cpu", **folders)
    assert "esmaeili2018/decomposition: measuring" in capsys.readouterr().err


def test_times_are_read_at_a_glance():
    assert [format_seconds(s) for s in (7.6, 200, 7500)] == ["8 s", "3 min 20 s", "2 h 5 min"]
