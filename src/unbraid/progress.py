"""Progress of work that takes long: a bar in a terminal, a block in a notebook, lines in a log; sentences on stderr."""

import html
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Literal, TypeVar

from unbraid.printable import escape, say

Item = TypeVar("Item")
Place = Literal["terminal", "notebook", "log"]

LOG_SECONDS = 10.0
"""Seconds between two lines of a log; they become a twentieth of the time so far in long work."""

FIRST_LINE_SECONDS = 5.0
"""Seconds before the first line of a log, which holds the first estimate of the time left."""

SILENT_SECONDS = 2.0
"""Seconds after which work without a counter says what it is."""

NOTEBOOK_SECONDS = 0.5


class Display:
    """A place where progress is seen."""

    def show(self, progress: "Progress") -> None:
        """Show the current state; called for each unit of work, so it must cost little."""
        raise NotImplementedError

    def close(self, progress: "Progress") -> None:
        raise NotImplementedError


class Progress:
    """A counter of work that is shown after `delay` seconds, with `terms` beside it if they are set."""

    terms: str | None = None
    displayed: ClassVar[int] = 0
    """Number of counters that are shown at the moment."""

    def __init__(self, description: str, total: int | None, delay: float, place: Place | None, done: int = 0) -> None:
        self.description, self.total, self.done = description, total, done
        self.started = time.monotonic()
        self._first: tuple[float, int] | None = None
        self._place = place
        self._display: Display | None = None
        if place == "log" and delay < FIRST_LINE_SECONDS:
            delay = FIRST_LINE_SECONDS
        self._show_at = self.started + delay if place is not None else float("inf")

    def advance(self, n: int = 1) -> None:
        """Record `n` more units of work."""
        self.done += n
        if self._first is None:  # it may load or compile, and says little about the others
            self._first = (time.monotonic(), self.done)
        try:
            if self._display is not None:
                self._display.show(self)
            elif time.monotonic() >= self._show_at:
                self._display = self._open()
                Progress.displayed += 1
                self._display.show(self)
        except (OSError, ValueError):  # the terminal is gone; the work goes on
            Progress.displayed -= self._display is not None
            self._display, self._show_at = None, float("inf")

    def close(self) -> None:
        if self._display is not None:
            Progress.displayed -= 1
            with suppress(OSError, ValueError):
                self._display.close(self)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def measured(self) -> int:
        """Units of work after the first, from which the time left is estimated."""
        return 0 if self._first is None else self.done - self._first[1]

    @property
    def measured_seconds(self) -> float:
        """Seconds that the measured units have taken so far."""
        return 0.0 if self._first is None else time.monotonic() - self._first[0]

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end, if it is known."""
        if self.total is None or not self.measured:
            return None
        return self.measured_seconds * (self.total - self.done) / self.measured

    def describe(self, ended: bool = False) -> str:
        """Return one line: how much is done, the time left or taken, and the terms."""
        if self.total is None:
            counted = f"{self.done:,}"
        else:
            counted = f"{self.done:,} of {self.total:,} ({100 * self.done // max(self.total, 1)}%)"
        left = self.seconds_left
        times = f"took {format_seconds(self.seconds)}" if ended or left is None else f"{format_seconds(left)} left"
        return "  ".join([f"{self.description}: {counted}", times, *([self.terms] if self.terms else [])])

    def _open(self) -> Display:
        if self._place == "terminal":
            return Bar(self)
        return Notebook() if self._place == "notebook" else Log()


class Bar(Display):
    """A bar on stderr."""

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress as RichBar, TextColumn, TimeRemainingColumn
        from rich.table import Column

        columns: tuple[Any, ...] = RichBar.get_default_columns()
        if progress.terms is not None:
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # terms take the remaining width
            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
            columns = (*columns, TextColumn("{task.fields[terms]}", table_column=rest))
        kept = progress.terms is not None
        self.bar = RichBar(*columns, console=Console(stderr=True), transient=not kept, expand=kept)
        self.task = self.bar.add_task(
            escape(progress.description), total=progress.total, completed=progress.done, terms=progress.terms
        )
        self.bar.start()

    def show(self, progress: Progress) -> None:
        self.bar.update(self.task, completed=progress.done, terms=progress.terms)

    def close(self, progress: Progress) -> None:
        self.bar.stop()


class Notebook(Display):
    """A line with a bar below a cell, in plain HTML: it needs no widgets, and stays in the saved notebook."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.next = 0.0

    def show(self, progress: Progress) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + NOTEBOOK_SECONDS
            self._draw(progress)

    def close(self, progress: Progress) -> None:
        self._draw(progress, ended=True)

    def _draw(self, progress: Progress, ended: bool = False) -> None:
        drawing = Drawing(progress, ended)
        if self.handle is None:
            self.handle = importlib.import_module("IPython.display").display(drawing, display_id=True)
        else:
            self.handle.update(drawing)


class Drawing:
    """A progress line as a notebook shows it: HTML, or text where there is none."""

    def __init__(self, progress: Progress, ended: bool) -> None:
        self.text, self.done, self.total = progress.describe(ended), progress.done, progress.total

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        ends = f' max="{self.total}" value="{self.done}"' if self.total else ""
        return f"<progress{ends}></progress><br><code>{html.escape(self.text)}</code>"


class Log(Display):
    """Lines on stderr, for a log file or a pipe."""

    def __init__(self) -> None:
        self.next = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now >= self.next and progress.done != progress.total:
            self.next = now + max(LOG_SECONDS, progress.seconds / 20)
            say(progress.describe())

    def close(self, progress: Progress) -> None:
        say(progress.describe(ended=True))


def format_seconds(seconds: float) -> str:
    """Return e.g. '8 s', '3 min 20 s' or '2 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def is_quiet() -> bool:
    """Return whether the environment asks for no progress: `UNBRAID_QUIET=1`."""
    return os.environ.get("UNBRAID_QUIET", "") == "1"


def announce(line: str) -> None:
    """Print a line to stderr, unless the environment asks for quiet; stdout is for results."""
    if not is_quiet():
        say(line)


def _find_place() -> Place:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return "notebook"
    return "terminal" if _is_terminal() else "log"


@contextmanager
def progress(
    description: str, total: int | None, delay: float = 2.0, done: int = 0, shown: bool = True
) -> Iterator[Progress]:
    """Yield a counter that starts at `done`; a `total` of None has no end.

    It shows nothing with `UNBRAID_QUIET=1` and outside the main thread. Work of a few seconds leaves no line in a log.
    """
    main = threading.current_thread() is threading.main_thread()
    bar = Progress(description, total, delay, _find_place() if shown and main and not is_quiet() else None, done)
    try:
        yield bar
    finally:
        bar.close()


class SlowWork:
    """A description of the work at hand, which the work itself may change."""

    def __init__(self, doing: str) -> None:
        self.doing = doing


@contextmanager
def name_slow_work(doing: str) -> Iterator[SlowWork]:
    """Print what is being done if the block takes longer than two seconds, and then now and again.

    A line is left out while a counter is shown, with `UNBRAID_QUIET=1` and outside the main thread.
    """
    work = SlowWork(doing)
    if is_quiet() or threading.current_thread() is not threading.main_thread():
        yield work
        return
    ended, began = threading.Event(), time.monotonic()

    def speak() -> None:
        seconds = SILENT_SECONDS
        while not ended.wait(seconds):
            if not Progress.displayed:
                announce(work.doing)
            seconds = max(LOG_SECONDS, (time.monotonic() - began) / 20)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield work
    finally:
        ended.set()
        speaker.join()


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False


def track(description: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield items under a bar; a tensor counts its rows, anything else counts as one."""
    sizes = [len(item) if hasattr(item, "shape") else 1 for item in items]  # type: ignore[arg-type]
    with progress(description, sum(sizes)) as bar:
        for item, size in zip(items, sizes, strict=True):
            yield item
            bar.advance(size)
