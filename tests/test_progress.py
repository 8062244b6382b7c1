"""The bar appears only on a terminal, only after a while, and never when told to be quiet."""

import sys

import pytest

from unbraid.progress import progress


@pytest.mark.parametrize(("terminal", "quiet", "shown"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_bar_is_shown_only_where_it_is_seen(monkeypatch, capsys, terminal, quiet, shown):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
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
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("Working", None) as bar:
        bar.advance(5)
    assert capsys.readouterr().err == ""
