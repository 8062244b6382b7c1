"""Ctrl-C and signals of schedulers and terminals stop a run after the current step or score; a second one at once.

A signal that arrives too late, such as after the last step, goes to the handler of the enclosing block.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from unbraid.errors import UnbraidError
from unbraid.training.environment import describe_continuation

STOPPING = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGXCPU")
    if hasattr(signal, name)  # Windows has only the first two
)
"""Ctrl-C, a scheduler's end, a closed terminal, Slurm's warning before the time limit, and a used-up CPU limit."""


class Interrupted(UnbraidError):  # noqa: N818 (it is no error)
    """The user or a scheduler stopped the work; everything so far is kept."""

    exit_code = 130


class Stop:
    """A flag that a signal sets."""

    requested = False


@contextmanager
def catch_interrupts(second_ends: bool = True) -> Iterator[Stop]:
    """Turn the first interrupt into a request to stop; only the main thread can catch signals.

    A second interrupt ends the process unless `second_ends` is false: torchrun may forward a signal that its processes
    have already received. A request that the block has not handled is raised again when the block ends.
    """
    stop = Stop()
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request_stop(number, frame):
        if stop.requested and second_ends:
            raise KeyboardInterrupt
        stop.requested = True
        received.append(signal.Signals(number))

    before = {number: signal.signal(number, request_stop) for number in STOPPING if _is_wanted(number)}
    handled = False
    try:
        yield stop
    except (Interrupted, KeyboardInterrupt):
        handled = True
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received and not handled:
            handler: Any = before[received[0]]
            if not callable(handler):
                raise KeyboardInterrupt  # the default handler would kill the process before it has cleaned up
            handler(received[0], None)


def _is_wanted(number: signal.Signals) -> bool:
    """Return whether a signal should stop a run: not if the user's program, or `nohup`, has said what it does."""
    handler = signal.getsignal(number)
    ours = getattr(handler, "__module__", "") == __name__
    return number in (signal.SIGINT, signal.SIGTERM) or handler is signal.SIG_DFL or ours


@contextmanager
def explain_how_to_continue(where: Path) -> Iterator[None]:
    """Say, when the block is stopped, which command continues."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        raise Interrupted(f"Stopped, and nothing is lost ({where}); {describe_continuation()}") from stopped


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Treat every other stopping signal as Ctrl-C: a process that waits for workers can cancel them and clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    others = [number for number in STOPPING if number is not signal.SIGINT and _is_wanted(number)]
    before = {number: signal.signal(number, interrupt) for number in others}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
