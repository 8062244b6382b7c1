"""A run that `--fresh` replaces stays beside the new one, as `.NAME.replaced`, until that has finished.

Whenever a process is killed, the old or the new run is whole: renaming a folder either happens or does not.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from unbraid.errors import RunError


def find_replaced(path: Path) -> Path:
    """Return where the run that was in `path` is kept."""
    if path.name in ("", ".."):  # "." and ".." have no name of their own
        path = Path(os.path.abspath(path))  # noqa: PTH100 (links are kept)
    return path.parent / f".{path.name}.replaced"


def set_aside(path: Path, whole: bool) -> None:
    """Rename a run out of the way; `whole` says that it is finished.

    If a run is aside already, its replacement did not finish: that is removed, and the older run is kept.
    """
    aside = find_replaced(path)
    if aside.exists() and not whole:
        remove_folder(path)
        return
    remove_folder(aside)
    path.rename(aside)


def restore_replaced(path: Path, finished: bool) -> None:
    """Rename a run back whose replacement was not created, or remove it if the replacement is `finished`."""
    aside = find_replaced(path)
    if not aside.is_dir() or aside.is_symlink():
        return
    with suppress(OSError):  # in a folder that cannot be written, nothing was begun either
        if finished:
            remove_folder(aside)
        elif not (path / "config.yaml").exists():
            remove_folder(path)
            aside.rename(path)


def remove_folder(path: Path) -> None:
    """Remove a folder so that it is gone at once: renamed first, then removed file by file."""
    gone = path.with_name(f".{path.name.removeprefix('.')}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    if path.is_symlink():
        raise RunError(f"{path} is a link; remove it, or choose another name.")
    if path.exists():
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
