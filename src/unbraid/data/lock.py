"""A lock that waits: one process at a time makes a file, and the others then find it made."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unbraid.data.base import refuse_unwritable
from unbraid.printable import print_to_stderr
from unbraid.safe_files import try_lock

SECONDS_BETWEEN_TRIES = 0.2


@contextmanager
def waiting_lock(path: Path, message: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block; print `message` once if another process holds it.

    The system releases the lock of a process that dies. The file is removed at the end.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(path, message)
    except OSError as error:
        raise refuse_unwritable(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # before the lock is released: nobody else has it yet
        os.close(handle)


def _acquire(path: Path, message: str) -> int:
    said = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        if try_lock(handle):
            # the file may have been removed by its last holder between opening and locking
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        elif not said:
            print_to_stderr(message)
            said = True
        os.close(handle)
        time.sleep(SECONDS_BETWEEN_TRIES if said else 0)
