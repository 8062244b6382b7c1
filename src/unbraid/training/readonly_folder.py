"""A run folder that ignores writes, for every rank except 0."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unbraid.store import RunFolder


class ReadOnlyRunFolder(RunFolder):
    """A view of the files that rank 0 writes; every write is a no-op, and rank 0 holds the lock."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        pass

    def append_line(self, name: str, record: Mapping[str, Any]) -> None:
        pass

    def cut_history(self, step: int) -> None:
        pass

    def save_model(self, tensors: Mapping[str, Any]) -> None:
        pass

    def save_checkpoint(self, step: int, tensors: Mapping[str, Any]) -> Path:
        return self.checkpoint_folder
