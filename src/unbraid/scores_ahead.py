"""Scores of finished runs that processes compute while a program goes on, such as with training the next runs.

Many scores of codes take seconds of a core, and a training on a GPU leaves all cores but one idle.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from unbraid.metrics.background import Requests
from unbraid.scoring import RunScoring, ScoringPlan, Subject, split_for_encoding

MOST_WAITING = 2
"""Parts of runs whose scores are under way at a time; each has a process for every core."""


class ScoresAhead:
    """Scores that are begun here and stored in their runs by `finish`, or at the end of a block.

    What needs the device is measured at once. A score that fails is left out: who asks for it next meets the error. If
    an error ends the block, scores that are done are stored, and the others are dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[list[RunScoring], ExitStack]] = deque()

    def add(self, asked: Sequence[tuple[Subject, Requests]]) -> None:
        """Begin to measure metrics, with their settings, on runs; a run may be asked for several times."""
        subjects = {id(subject): subject for subject, _ in asked}
        for part in split_for_encoding(list(subjects.values())):
            if len(self._waiting) == MOST_WAITING:
                self._finish_first()
            chosen = {id(subject) for subject in part}
            with ExitStack() as stack:  # ends the processes if anything fails here
                runs = stack.enter_context(
                    ScoringPlan().open([pair for pair in asked if id(pair[0]) in chosen], background=True)
                )
                for run in runs:
                    run.measure(run.schedule.here)
                for subject in part:
                    subject.evaluation.forget()  # the processes have the codes that they need
                if any(run.schedule.elsewhere for run in runs):
                    self._waiting.append((runs, stack.pop_all()))

    def finish(self) -> None:
        """Wait for all scores and store them."""
        while self._waiting:
            self._finish_first()

    def _finish_first(self) -> None:
        runs, stack = self._waiting.popleft()
        with stack:
            for run in runs:
                run.measure(run.schedule.elsewhere)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        while self._waiting:
            runs, stack = self._waiting.popleft()
            with stack:
                for run in runs:
                    run.measure([name for name in run.schedule.elsewhere if run.schedule.is_done(name)])
