"""The command line, run in this process or in one of its own."""

import contextlib
import io
import sys
from pathlib import Path

import pytest

from unbraid.cli import main

SOURCE = str(Path(__file__).parents[2] / "src")


def unbraid(*arguments, cwd=None, code=0, **environment):
    """Run a command in this process, as its entry point does; returns what it printed where it should have."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["unbraid", *map(str, arguments)])
        for name, value in environment.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as left:
            main()
    assert (left.value.code or 0) == code, out.getvalue() + err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()
