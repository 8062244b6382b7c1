"""A sweep that is continued from another working folder, where the relative path of its data leads nowhere."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unbraid.data.find import find_missing_path
from unbraid.errors import RunError, UnbraidError
from unbraid.stored_model import explain_missing_path
from unbraid.sweeps.folder import SweepFolder


@contextmanager
def name_member_without_data(root: Path, name: str | None, given: Iterable[Any]) -> Iterator[None]:
    """Turn an error about data that are not here into one about the member of a sweep that was begun on them.

    `given` are the data and paths that were asked for, and `name` is the sweep's; without it, all sweeps below `root`
    are looked at.
    """
    try:
        yield
    except UnbraidError as error:
        explain_member_without_data(root, name, given, error)
        raise


def explain_member_without_data(root: Path, name: str | None, given: Iterable[Any], error: UnbraidError) -> None:
    """Raise if a member of a sweep has data in a relative path that was given and is not here."""
    asked = {each for each in given if isinstance(each, str)}
    for sweep in [root / name] if name else sorted(path.parent for path in root.glob("*/sweep.yaml")):
        missing = _find_missing(sweep, asked)
        if missing is not None:
            raise RunError(missing) from error


def _find_missing(path: Path, asked: set[str]) -> str | None:
    """Return a sentence about the first member whose data are not here, or None if there is none."""
    sweep, seen = SweepFolder(path), set()
    try:
        for run, settings in sweep.members.items():
            data = str({key: value for key, value in settings.items() if key.partition(".")[0] == "data"})
            if data in seen:
                continue
            seen.add(data)
            missing = find_missing_path(sweep.run_folder(run).config.data)
            if missing in asked:
                return explain_missing_path(sweep.run_folder(run), f"The member {run} of the sweep {path}")
    except (UnbraidError, OSError, ValueError):  # a damaged sweep, or an impossible name, explains nothing
        pass
    return None
