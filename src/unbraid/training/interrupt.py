"""Ctrl-C and a scheduler's SIGTERM end a run after the current step or score; a second one at once.

A signal that comes too late for whoever listens, as after the last step, goes on to whoever listened before.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from unbraid.errors import UnbraidError


class Interrupted(UnbraidError):  # noqa: N818 (it is no error)
    """Work was asked to stop; everything so far is kept."""

    exit_code = 130


class Stop:
    """Whether somebody has asked to stop."""

    asked = False


@contextmanager
def stoppable(insistent: bool = True) -> Iterator[Stop]:
    """Turn the first interrupt into a request; only the main thread can catch signals.

    Whoever repeats it insists, unless not `insistent`: a launcher such as torchrun may pass on what its processes have
    already received. A request that nobody has heeded inside is made again outside.
    """
    stop = Stop()
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and insistent:
            raise KeyboardInterrupt
        stop.asked = True
        received.append(signal.Signals(number))

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = False
    try:
        yield stop
    except (Interrupted, KeyboardInterrupt):
        heeded = True
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received and not heeded:
            _pass_on(received[0], before[received[0]])


def _pass_on(number: int, handler: Any) -> None:
    """Hand a signal to an earlier handler; where there was none the process must not die before it has tidied up."""
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, None)


@contextmanager
def continued_by_the_same_command(where: Path) -> Iterator[None]:
    """Whatever is stopped inside, and however: say that nothing but the same command is needed to go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        raise Interrupted(f"Stopped; the same command continues ({where}).") from stopped


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM is what Ctrl-C is: whoever only waits for others can cancel them and tidy up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
