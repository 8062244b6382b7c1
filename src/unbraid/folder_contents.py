"""Tell what a folder or a file is: a run, a sweep, stored data, a stored classifier, or nothing that unbraid wrote."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from unbraid.data.base import data_home
from unbraid.errors import UnbraidError
from unbraid.schema import FILES
from unbraid.store import read_config
from unbraid.tensor_files import read_header

Sealed = Literal["data", "classifier", "unreadable"]
MAX_DEPTH_IN_RUN = 4
"""Folders between a file and its sweep: runs/RUN/snapshot/checkpoints."""

BYTES_TO_SEARCH = 1 << 20
"""The first bytes of a safetensors file are its header, with all facts before the list of tensors."""

_WORDS_OF_DATA = (b'"checksum"', b'"description"', b'"seal"')
_WORDS_OF_CLASSIFIER = (b'"facts"', b'"digest"')
_RUN_FILES = {"model.safetensors", "checkpoints", *(f"{stem}{end}" for stem in FILES for end in (".json", ".jsonl"))}


@dataclass
class Contents:
    """Runs and sweeps below a folder, and `files`: safetensors files that are in none of them."""

    runs: list[Path] = field(default_factory=list)
    sweeps: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is a sweep; other programs have a sweep.yaml, too."""
    return _exists(folder / "sweep.yaml") and any(_exists(folder / name) for name in ("members.json", "runs"))


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run, whole or damaged; other programs have a config.yaml, too."""
    if not _exists(folder / "config.yaml"):
        return False
    if any(_exists(folder / name) for name in _RUN_FILES):
        return True
    try:
        read_config(folder / "config.yaml")
    except (UnbraidError, OSError):
        return False
    return True


def find_enclosing(path: Path) -> Path | None:
    """Return the run or the sweep that a file or folder is in, or None."""
    return next((folder for folder in path.parents[:MAX_DEPTH_IN_RUN] if is_run(folder) or is_sweep(folder)), None)


def list_contents(folder: Path) -> Contents:
    """Return the runs, sweeps and safetensors files below a folder; hidden folders are left out."""
    found = Contents()
    for parent, folders, files in os.walk(folder):
        descend = []
        for name in sorted(name for name in folders if not name.startswith(".")):
            below = Path(parent) / name
            if is_sweep(below):
                found.sweeps.append(below)
            elif is_run(below):
                found.runs.append(below)
            else:
                descend.append(name)
        folders[:] = descend  # os.walk follows no links
        names = sorted(name for name in files if name.endswith(".safetensors") and not name.startswith("."))
        found.files += [Path(parent) / name for name in names if (Path(parent) / name).is_file()]
    return found


def recognise(file: Path) -> Sealed | None:
    """Return what kind of sealed file this is, or None if it is not one, or another program's.

    The words of its header are searched for, as a damaged file may not open. `unreadable` is a file that does not open,
    among those that unbraid stores or with no permission to read it.
    """
    if file.suffix != ".safetensors":
        return None
    try:
        with file.open("rb") as handle:
            start = handle.read(BYTES_TO_SEARCH)
    except OSError:
        return "unreadable"
    if sum(word in start for word in _WORDS_OF_DATA) > 1:
        return "data"
    if all(word in start for word in _WORDS_OF_CLASSIFIER):
        return "classifier"
    try:
        read_header(file)
    except UnbraidError:
        return "unreadable" if file.absolute().is_relative_to(data_home().absolute()) else None
    return None


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 (Path's may raise)
