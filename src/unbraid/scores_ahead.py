"""Scores of finished runs that processes compute while a program goes on, such as with training the next runs.

Many scores of codes take seconds of a core, and a training on a GPU leaves all cores but one idle.
"""

from collections import deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from unbraid.errors import MissingExtraError
from unbraid.metrics.background import Requests
from unbraid.scoring import RunScoring, ScoringPlan, Subject, describe_unavailable, split_for_encoding

MAX_PARTS_UNDER_WAY = 2
"""Parts of runs whose scores are computed at a time; each has a process for every core but one."""


class ScoresAhead:
    """Scores that are begun here and stored in their runs by `finish`, or at the end of a block.

    What needs the device is measured at once. If an error or Ctrl-C comes between, scores that are done are stored, and
    the others are dropped.
    """

    def __init__(self) -> None:
        self.unavailable: dict[str, str] = {}
        """Notes on metrics that need a package, by metric."""
        self._under_way: deque[tuple[list[RunScoring], ExitStack]] = deque()

    def add(self, asked: Sequence[tuple[Subject, Requests]], required: Collection[str] = ()) -> None:
        """Begin to measure metrics, with their settings, on runs; a run may be asked for several times.

        A metric in `required` that the data do not allow raises an error; any other is left out.
        """
        subjects = {id(subject): subject for subject, _ in asked}
        plan = ScoringPlan(required, missing_only=True)
        for part in split_for_encoding(list(subjects.values())):
            if len(self._under_way) == MAX_PARTS_UNDER_WAY:
                self._finish_first()
            chosen = {id(subject) for subject in part}
            with ExitStack() as stack:  # ends the processes if anything fails here
                pairs = [pair for pair in asked if id(pair[0]) in chosen]
                runs = stack.enter_context(plan.open(pairs, background=True))
                for run in runs:
                    run.measure(run.schedule.here)
                for subject in part:
                    subject.evaluation.forget()  # the processes have the codes that they need
                if any(run.schedule.elsewhere for run in runs):
                    self._under_way.append((runs, stack.pop_all()))
                else:
                    self._record_skipped(runs)

    def finish(self) -> None:
        """Wait for all scores and store them."""
        while self._under_way:
            self._finish_first()

    def _finish_first(self) -> None:
        runs, _ = self._under_way[0]
        for run in runs:
            run.measure(run.schedule.elsewhere)
        self._record_skipped(runs)
        self._under_way.popleft()[1].close()

    def _record_skipped(self, runs: Sequence[RunScoring]) -> None:
        """Record the metrics that runs do not allow, so that nobody encodes these runs again to find that out."""
        for run in runs:
            for name, error in run.finish().skipped.items():
                if isinstance(error, MissingExtraError):
                    self.unavailable[name] = describe_unavailable(name, error)

    def _store_what_is_done(self) -> None:
        with ExitStack() as stacks:  # ends all processes, also if a score cannot be stored
            for _, stack in self._under_way:
                stacks.push(stack)
            while self._under_way:
                for run in self._under_way.popleft()[0]:
                    run.measure([name for name in run.schedule.elsewhere if run.has_ready(name)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._store_what_is_done()
