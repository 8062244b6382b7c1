"""Ctrl-C and a scheduler's SIGTERM end a run after the current step or score; a second one at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether somebody has asked to stop."""

    asked = False


@contextmanager
def stoppable(insistent: bool = True) -> Iterator[Stop]:
    """Turn the first interrupt into a request; only the main thread can catch signals.

    Whoever repeats it insists, unless not `insistent`: a launcher such as torchrun may pass on what its processes have
    already received.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked and insistent:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
