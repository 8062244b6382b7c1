"""What the command line says when a command fails: one sentence, an exit code, and a log of what nobody expected."""

import errno
import io
import os
import tempfile
import traceback

import typer

from unbraid.cli.options import INTERRUPTED, leads
from unbraid.cli.streams import echo
from unbraid.errors import UnbraidError, UsageError
from unbraid.memory import is_out_of_memory
from unbraid.printable import escape

DEBUG = "UNBRAID_DEBUG"
"""Environment variable that shows the traceback of every error if it is 1."""

_CLICK_ERROR = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""The base of typer's errors about arguments; which package holds it depends on typer's version."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def explain_failure(error: BaseException) -> int:
    """Print what a failed command has to say, and return its exit code."""
    if os.environ.get(DEBUG) == "1" and not isinstance(error, _CLICK_ERROR):
        echo("".join(traceback.format_exception(error)), err=True)
    if isinstance(error, UnbraidError):
        if leads() or error.exit_code not in (INTERRUPTED, UsageError.exit_code):  # which all ranks raise
            stopped = error.exit_code == INTERRUPTED
            echo(escape(error) if stopped else f"error: {escape(error)}", err=True)
        return error.exit_code
    if isinstance(error, _CLICK_ERROR):
        shown = io.StringIO()
        error.show(shown)
        misplaced = "option: --with" in shown.getvalue()
        advice = "\nWrite --with before the command: unbraid --with FILE.py train …" if misplaced else ""
        echo(shown.getvalue().rstrip("\n") + advice, err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        echo("stopped", err=True)
        return INTERRUPTED
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _FULL):
        echo(f"error: {escape(_describe_os_error(error))}", err=True)
    elif is_out_of_memory(error):
        echo("error: There is not enough memory; use fewer --rows, a smaller batch or smaller networks.", err=True)
    else:
        echo(f"error: {_describe_unexpected(error)}", err=True)
    return 1


def _describe_os_error(error: OSError) -> str:
    name = error.filename.decode(errors="backslashreplace") if isinstance(error.filename, bytes) else error.filename
    return f"{error.strerror or error}: {'' if name is None else name}".rstrip(": ") + "."


def _describe_unexpected(error: BaseException) -> str:
    """Return one sentence about an error that no code foresaw, after writing its traceback to a file."""
    lines = str(error).strip().splitlines()
    what = escape(f"{type(error).__name__}{': ' + lines[0][:200] if lines else ''}").rstrip(".")
    try:
        handle, path = tempfile.mkstemp(prefix="unbraid-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
        where = f"the traceback is in {path}, please report it"
    except OSError:
        where = f"run the command again with {DEBUG}=1 to see the traceback, and please report it"
    return f"An unexpected error stopped unbraid ({what}); {where}."
