"""Paths and names of folders as a user gives them, checked before anything is written."""

import os
from pathlib import Path
from typing import Any

from unbraid.errors import UsageError
from unbraid.invocation import choose_wording
from unbraid.printable import shorten

MAX_PART_BYTES = 255
"""Longest name of a file that systems allow."""

MAX_NAME_BYTES = 200
"""Systems allow 255 bytes for a name, and files beside a folder have longer ones."""


def to_path(path: Any, what: str = "A path") -> Path:
    """Return text, bytes or a path as a path that a system can have."""
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    usable = isinstance(path, (str, os.PathLike)) and "\0" not in str(path)
    if not usable or any(len(os.fsencode(part)) > MAX_PART_BYTES for part in Path(path).parts):
        raise UsageError(f"{what} must be the path of a folder, not {shorten(repr(path))}.")
    return Path(path)


def check_folder_name(name: str) -> None:
    """Raise a `UsageError` unless the name is that of a single folder."""
    plain = isinstance(name, str) and "\0" not in name and name not in ("", ".", "..") and Path(name).name == name
    if not plain:
        place = choose_wording("--root", "root=…")
        raise UsageError(f"A run's name is the name of one folder, not '{shorten(name)}'; {place} chooses the place.")
    if (length := len(os.fsencode(name))) > MAX_NAME_BYTES:
        raise UsageError(f"The name '{shorten(name)}' is too long: {length} bytes, and at most {MAX_NAME_BYTES} fit.")
