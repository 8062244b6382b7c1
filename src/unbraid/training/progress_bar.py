"""The progress bar of training: steps, terms and images per second."""

import os
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from unbraid.config import Config


class TrainingBar:
    """A rich progress bar on stderr, drawn only in a terminal and without `UNBRAID_QUIET=1`."""

    def __init__(self, configs: Sequence[Config], start: int, shown: bool = True) -> None:
        config = configs[0]
        self.total, self.start = config.training.steps, start
        runs = f"seed {config.training.seed}" if len(configs) == 1 else f"{len(configs)} members"
        self.label = f"{config.objective.name} on {config.data.name}, {runs}"
        self.visible = shown and sys.stderr.isatty() and os.environ.get("UNBRAID_QUIET", "") != "1"
        self._bar: Any = None

    def __enter__(self) -> "TrainingBar":
        if self.visible:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # terms take the remaining width
            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
            terms = TextColumn("{task.fields[terms]}", table_column=rest)
            self._bar = Progress(*columns, terms, console=Console(stderr=True), expand=True)
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.start, terms="")
            self._bar.start()
        return self

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._task)

    def show(self, terms: Mapping[str, float], rate: float) -> None:
        if self._bar is not None:
            loss, *others = [f"{name} {value:.2f}" for name, value in terms.items()]
            self._bar.update(self._task, terms="  ".join([loss, f"{rate:,.0f} images/s", *others]))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
