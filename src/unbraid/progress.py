"""A progress bar that appears only in a terminal, and only for work that takes long."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """A counter of work that draws a bar on stderr after `delay` seconds."""

    def __init__(self, description: str, total: int | None, delay: float, visible: bool) -> None:
        self.description, self.total, self.done = description, total, 0
        self._show_at = time.monotonic() + delay if visible else float("inf")
        self._bar = None

    def advance(self, n: int = 1) -> None:
        """Record `n` more units of work."""
        self.done += n
        if self._bar is not None:
            self._bar.advance(self._task, n)
        elif time.monotonic() >= self._show_at:
            self._start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self.description, total=self.total, completed=self.done)
        self._bar.start()


@contextmanager
def progress(description: str, total: int | None, delay: float = 2.0) -> Iterator[Progress]:
    """Yield a counter; a `total` of None draws a bar without an end.

    It draws nothing outside a terminal, with `UNBRAID_QUIET=1`, and outside the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    visible = main and sys.stderr.isatty() and os.environ.get("UNBRAID_QUIET", "") != "1"
    bar = Progress(description, total, delay, visible)
    try:
        yield bar
    finally:
        bar.close()


def track(description: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield items under a bar; a tensor counts its rows, anything else counts as one."""
    sizes = [len(item) if hasattr(item, "shape") else 1 for item in items]  # type: ignore[arg-type]
    with progress(description, sum(sizes)) as bar:
        for item, size in zip(items, sizes, strict=True):
            yield item
            bar.advance(size)
