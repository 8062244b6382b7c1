"""Errors that a user can act on: one sentence says what was wrong and what to do."""

import difflib
from collections.abc import Iterable
from typing import Any

from unbraid.printable import escape, shorten


class UnbraidError(Exception):
    """Base of all errors that unbraid raises on purpose; the command line prints them without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes with message and attributes, whatever the arguments of the class are."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[UnbraidError], args: tuple[Any, ...], attributes: dict[str, Any]) -> UnbraidError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class UsageError(UnbraidError):
    """The request itself is wrong: an unknown name, a bad value, a missing argument."""

    exit_code = 2


class SettingError(UsageError):
    """A setting has an unusable value; scoring never skips this error."""


class MissingExtraError(UsageError):
    """A package of an optional extra is not installed; the message says how to install it."""

    def __init__(self, what: str, module: str, extra: str, otherwise: str = "") -> None:
        super().__init__(f"{what} needs {module}: pip install 'unbraid[{extra}]'{otherwise}.")


class DataError(UnbraidError):
    """A file or an array does not have the format that it should have; the message names the file."""

    def __str__(self) -> str:
        return escape(super().__str__())  # it quotes cells and names, in which a line may end


class RunError(UnbraidError):
    """A run folder is missing, locked, damaged or belongs to another config."""


class DiskError(RunError, OSError):
    """The disk is full or fails; the message names the file, which is as it was before."""

    def __str__(self) -> str:
        return self.args[0]  # an OSError with an errno would show only that


class DivergedError(UnbraidError):
    """Training left the finite numbers; the message names step, term and the last good checkpoint."""


def unknown(
    kind: str, name: str, known: Iterable[str], of: str = "", error: type[UsageError] = UsageError
) -> UsageError:
    """Return an error for an unknown name (`of` something), with the nearest match and the list of known names."""
    names, name = sorted(known), name if isinstance(name, str) else shorten(repr(name))
    near = difflib.get_close_matches(name[:200], names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    owner = f" of {of}" if of else ""
    return error(f"Unknown {kind} '{shorten(name)}'{owner}.{hint} Known: {', '.join(names) or 'none'}.")
