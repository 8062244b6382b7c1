"""A run folder as the ranks see it that do not write."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unbraid.store import RunFolder


class Onlooker(RunFolder):
    """Reads what the first rank writes, and writes nothing."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The first rank holds the lock for all."""
        yield

    def write_json(self, name: str, facts: Mapping[str, Any]) -> None:
        """Nothing."""

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def cut_history(self, step: int) -> None:
        """Nothing."""

    def save_model(self, tensors: Mapping[str, Any]) -> None:
        """Nothing."""

    def save_checkpoint(self, step: int, tensors: Mapping[str, Any]) -> Path:
        """Nothing; where the first rank writes it."""
        return self.checkpoint_folder
