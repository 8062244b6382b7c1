"""A progress bar that appears only in a terminal, and only for work that takes long; and sentences on stderr."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """A counter of work that draws a bar on stderr after `delay` seconds, and beside it `terms` if they are set."""

    terms: str | None = None

    def __init__(self, description: str, total: int | None, delay: float, visible: bool, done: int = 0) -> None:
        self.description, self.total, self.done = description, total, done
        self._show_at = time.monotonic() + delay if visible else float("inf")
        self._bar = None

    def advance(self, n: int = 1) -> None:
        """Record `n` more units of work."""
        self.done += n
        if self._bar is not None:
            self._bar.update(self._task, advance=n, terms=self.terms)
        elif time.monotonic() >= self._show_at:
            self._start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns = Bar.get_default_columns()
        if self.terms is not None:
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # terms take the remaining width
            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
            columns = (*columns, TextColumn("{task.fields[terms]}", table_column=rest))
        kept = self.terms is not None
        self._bar = Bar(*columns, console=Console(stderr=True), transient=not kept, expand=kept)
        self._task = self._bar.add_task(self.description, total=self.total, completed=self.done, terms=self.terms)
        self._bar.start()


def say(sentence: str) -> None:
    """Print a sentence that the user must know to stderr, also with `UNBRAID_QUIET=1`; a closed stderr is ignored."""
    with suppress(OSError, ValueError, AttributeError):
        print(sentence, file=sys.stderr, flush=True)


@contextmanager
def progress(
    description: str, total: int | None, delay: float = 2.0, done: int = 0, shown: bool = True
) -> Iterator[Progress]:
    """Yield a counter that starts at `done`; a `total` of None draws a bar without an end.

    It draws nothing outside a terminal, with `UNBRAID_QUIET=1`, and outside the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    visible = shown and main and sys.stderr.isatty() and os.environ.get("UNBRAID_QUIET", "") != "1"
    bar = Progress(description, total, delay, visible, done)
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
