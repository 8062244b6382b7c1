"""Errors that a user can act on: one sentence that says what was wrong and what to do."""

import difflib
from collections.abc import Iterable


class UnbraidError(Exception):
    """Base of everything that unbraid raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(UnbraidError):
    """The request itself is wrong (unknown name, bad value, missing argument)."""

    exit_code = 2


class SettingError(UsageError):
    """A setting that was given has a value that nothing can be made of; what else was asked for does not excuse it."""


class MissingExtraError(UsageError):
    """A package of an optional extra is not installed; the message says how to install it."""

    def __init__(self, what: str, module: str, extra: str, otherwise: str = "") -> None:
        super().__init__(f"{what} needs {module}: pip install 'unbraid[{extra}]'{otherwise}.")


class DataError(UnbraidError):
    """A file or an array is not what its format promises; the message names the file."""


class RunError(UnbraidError):
    """A run folder is missing, locked, damaged or made from something else."""


class DivergedError(UnbraidError):
    """Training left the finite numbers; the message names step, term and the last good checkpoint."""


def unknown(
    kind: str, name: str, known: Iterable[str], of: str = "", error: type[UsageError] = UsageError
) -> UsageError:
    """An error for a name that does not exist (`of` something), with the nearest match and the whole list."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    listing = ", ".join(names) if names else "none"
    owner = f" of {of}" if of else ""
    return error(f"Unknown {kind} '{name}'{owner}.{hint} Known: {listing}.")
