"""Pictures of a folder that cannot be read: all of them are found at once, to be refused or left out together.

Finding them decodes every picture. The result is kept in `UNBRAID_DATA/pictures`, named by a hash of the names, sizes
and times of the pictures, so that loading, encoding and resuming agree on the rows and check only once.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from unbraid import atomic
from unbraid.data.base import data_home
from unbraid.data.picture_cache import hash_files
from unbraid.data.picture_files import UnreadablePictureError, read_picture
from unbraid.errors import DataError, RunError, unknown
from unbraid.progress import announce, progress

Unreadable = Literal["refuse", "skip"]

MAX_NAMED = 5
"""Pictures that a message names; it counts the others."""


def leave_out_unreadable(folder: Path, names: Sequence[str], unreadable: Unreadable, tell: bool = False) -> list[str]:
    """Return the pictures that can be read if the others are to be skipped, and else all of them, unchecked.

    `tell` announces those that are left out.
    """
    if unreadable not in ("refuse", "skip"):
        raise unknown("value of unreadable", unreadable, ("refuse", "skip"))
    found = find_unreadable(folder, names) if unreadable == "skip" and names else {}
    kept = [name for name in names if name not in found]
    if found and not kept:
        raise DataError(f"{folder}: none of {len(names):,} pictures can be read. {next(iter(found.values()))}")
    if found and tell:
        announce(f"  data.unreadable=skip: {_count(found, names)} and are left out ({_list(found)})")
    return kept


@contextmanager
def name_unreadable(folder: Path, names: Sequence[str], skippable: bool = True) -> Iterator[None]:
    """Turn the error for one unreadable picture into one that names all, so that they can be mended together.

    `skippable` says that a setting of the data set leaves them out.
    """
    try:
        yield
    except UnreadablePictureError as error:
        found = find_unreadable(folder, names)
        if not found:  # another process has mended it meanwhile
            raise
        otherwise = ", or leave them out with data.unreadable=skip" if skippable else ""
        raise DataError(
            f"{folder}: {_count(found, names)} ({_list(found)}); repair or remove them{otherwise}. {error}"
        ) from error


def find_unreadable(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the pictures that cannot be decoded, by their names below the folder, with a sentence that says why."""
    record = _find_record(folder, names)
    stored = None if record is None else _read_record(record)
    if stored is not None:
        return {name: stored[name] for name in names if name in stored}
    found: dict[str, str] = {}
    lasting = True
    with ThreadPoolExecutor() as pool, progress(f"Checking {folder}", len(names)) as bar:
        for name, error in zip(names, pool.map(partial(_try_picture, folder), names), strict=True):
            if error is not None:
                found[name] = str(error)
                lasting = lasting and getattr(error.__cause__, "errno", None) is None
            bar.advance()
    if record is not None and lasting:  # permissions and disks are mended without a change of the file
        with suppress(OSError, RunError), atomic.replacing(record) as part:  # it only saves time
            part.write_text(json.dumps(found))
    return found


def _try_picture(folder: Path, name: str) -> DataError | None:
    """Return the error of a picture, or None if it can be read; grey ones can be read as RGB, too."""
    try:
        read_picture(folder / name, str(folder / name), "RGB")
    except UnreadablePictureError as error:
        return error
    return None


def _find_record(folder: Path, names: Sequence[str]) -> Path | None:
    try:
        return data_home() / "pictures" / f"{hash_files(folder, names, None)}-unreadable.json"
    except OSError:  # a picture has vanished
        return None


def _read_record(path: Path) -> dict[str, str] | None:
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    known = isinstance(stored, dict) and all(isinstance(reason, str) for reason in stored.values())
    return stored if known else None


def _count(found: Collection[str], names: Sequence[str]) -> str:
    return f"{len(found):,} of {len(names):,} pictures cannot be read"


def _list(found: Collection[str]) -> str:
    more = len(found) - MAX_NAMED
    return ", ".join(list(found)[:MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
