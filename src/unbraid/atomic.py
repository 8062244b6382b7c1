"""Files that are either whole or absent: written under another name, synced, renamed."""

import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unbraid.errors import DiskError, RunError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that is full, over its quota or a limit, or broken."""

_numbers = itertools.count()
"""Numbers of partial files: two threads may write the same file."""


@contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` on success and disappears on failure.

    A killed process leaves only a file that ends in `.part`, which nothing reads. Without `sync`, a machine that loses
    its power may leave an empty file: for thousands of pictures, each of which would wait for the disk.
    """
    check_replaceable(path)
    part = path.with_name(f".{path.name}.{next(_numbers)}.{os.getpid()}.part")
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # a link of that name would lead elsewhere
        try:
            yield part
            if sync:
                _sync(part)
            part.replace(path)
            if sync:
                _sync(path.parent)
        finally:
            part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Raise for a folder, a pipe or a device: a rename would put a plain file in the place of /dev/null."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a plain file, so it is not replaced; choose another path.")


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one sentence about a file that could not be written."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            if str(error.filename).endswith(".part"):
                error.filename = str(path)  # the name that the user knows
            raise
        free = shutil.disk_usage(path.parent if path.parent.exists() else Path()).free
        told = DiskError(
            f"{path} cannot be written ({error.strerror}, {free:,} bytes are free); free some space, then use the same "
            "command again."
        )
        told.errno, told.strerror = error.errno, error.strerror
        raise told from error


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as part:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            write_all(handle, content)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_all(handle: int, content: bytes) -> None:
    """Write everything to an open file; a disk that is full may take a part of it before it refuses the rest."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def list_partial_files(folder: Path) -> list[Path]:
    """Return the partial files in a folder that no living process writes."""
    return [part for part in sorted(folder.glob(".*.part")) if not _is_being_written(part)]


def remove_partial_files(folder: Path, name: str = "") -> None:
    """Remove the partial files of processes that were killed, or only those of one file by its name."""
    for part in list_partial_files(folder):
        if not name or part.name.rsplit(".", 3)[0] == f".{name}":
            part.unlink(missing_ok=True)


def _is_being_written(part: Path) -> bool:
    process = part.name.split(".")[-2]
    return process.isascii() and process.isdecimal() and 0 < int(process[:10]) < 1 << 31 and _alive(int(process[:10]))


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process, and alive
    return process != os.getpid()  # this process no longer writes files that it left behind


def _sync(path: Path) -> None:
    """Force a file or folder to disk; where a folder cannot be opened, it needs no sync."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
