"""A run folder that ignores writes, for every rank except 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unbraid.store import RunFolder


class ReadOnlyRunFolder(RunFolder):
    """A view of the files that rank 0 writes; every write is a no-op, and rank 0 holds the lock."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def _ignore(self, *_: Any, **__: Any) -> None: ...

    write_json = append_line = cut_history = save_model = save_checkpoint = save_snapshot = _ignore
