"""Scores of finished runs that processes compute while a program goes on, such as with training the next runs.

A training on a GPU leaves all cores but one idle.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import torch

from unbraid.errors import MissingExtraError, UnbraidError
from unbraid.metrics.background import Requests
from unbraid.scoring import Job, describe_unavailable
from unbraid.scoring_pool import Outcome, ScoringPool, count_processes
from unbraid.store import RunFolder

CORES_FOR_TRAINING = 2
"""Cores that are left to the program that goes on."""

SHARE_OF_MEMORY = 0.25
"""Share of the free memory of a GPU that processes may take; the next training needs the rest."""


class ScoresAhead:
    """Scores that are begun by `add` and stored in their runs by the time that `finish`, or the block, ends.

    Each score is stored as soon as it exists, so that an error or Ctrl-C loses none. What a process could not measure
    is missing after `finish`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.unavailable: dict[str, str] = {}
        """Notes on metrics that need a package, by metric."""
        self._pool: ScoringPool | None = None
        self._under_way: list[Future[Outcome]] = []

    def add(self, asked: Sequence[tuple[RunFolder, Sequence[Requests]]], required: Collection[str] = ()) -> None:
        """Begin to measure metrics, with their settings, on runs.

        A metric in `required` that the data do not allow makes `finish` raise an error; any other is left out.
        """
        if asked and self._pool is None:
            cores = max(1, torch.get_num_threads() - CORES_FOR_TRAINING)
            self._pool = ScoringPool(self.device, count_processes(self.device, cores, cores, SHARE_OF_MEMORY))
        for folder, requests in asked:
            assert self._pool is not None
            job = Job(folder.path, folder.root, tuple(requests), required=frozenset(required), missing_only=True)
            self._under_way.append(self._pool.submit(job))

    def finish(self) -> None:
        """Wait for all scores."""
        while self._under_way:
            found = self._under_way.pop(0).result()
            if isinstance(found, UnbraidError):
                raise found
            for result in found or ():
                for name, error in result.skipped.items():
                    if isinstance(error, MissingExtraError):
                        self.unavailable[name] = describe_unavailable(name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            if self._pool is not None:
                self._pool.close()
