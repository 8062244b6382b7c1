"""Files that are either whole or absent: written under another name, synced, renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` on success and disappears on failure.

    A killed process leaves only a file that ends in `.part`, which nothing reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        _sync(part)
        part.replace(path)
        _sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files of processes that were killed."""
    for part in folder.glob(".*.part"):
        if not _alive(int(part.name.split(".")[-2])):
            part.unlink(missing_ok=True)


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
