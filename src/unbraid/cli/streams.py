"""Standard streams that may be closed, broken, full or unable to show a character."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

import typer

from unbraid.printable import escape_lines

_lost: list[OSError | ValueError] = []


def echo(text: object, err: bool = False) -> None:
    """Print text with escapes for control characters; a stream that fails is left alone, and work goes on."""
    try:
        typer.echo(escape_lines(text), err=err)
    except (OSError, ValueError) as error:  # ValueError: the stream is closed
        _give_up("stderr" if err else "stdout", error)


@contextlib.contextmanager
def guarded_stdout() -> Iterator[None]:
    """Leave stdout alone once it fails inside the block, and go on after it."""
    try:
        yield
    except (OSError, ValueError) as error:
        _give_up("stdout", error)
    except SystemExit:  # so rich ends a program whose reader has gone away
        pass


def prepare_streams() -> None:
    """Fill the places of closed streams, and let a stream show what its encoding lacks.

    If stdout is closed, the next file that is opened would take its place, and prints of libraries would go into it.
    """
    _lost.clear()
    with contextlib.suppress(OSError):
        while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.closed:
            stream.reconfigure(errors="backslashreplace")


def flush_streams() -> str:
    """Flush both streams; return a sentence if output was lost, except to a reader that has gone away."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            _give_up(name, error)
    told = [error for error in _lost if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.EBADF)]
    return f"The output could not be printed ({told[0].strerror}), but the work is done." if told else ""


def _give_up(name: str, error: OSError | ValueError) -> None:
    """Replace a failing stream, so that Python does not fail at it again when it ends."""
    _lost.append(error)
    setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 (until the process ends)
