"""Text from files and arguments as a terminal may show it: control characters are shown, not obeyed."""

import re
import sys
from typing import Any

_OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # terminals take these as commands: colours, titles, cursor movements, line ends
    "\u2028-\u202e\u2066-\u2069"  # these end lines, or turn the direction of writing
    "\ud800-\udfff"  # parts of characters, by which Python holds bytes that are no text
)
_CONTROL = re.compile(f"[{_OBEYED}]")
_CONTROL_IN_LINE = re.compile(f"(?![\n\t])[{_OBEYED}]")


def escape(text: object) -> str:
    r"""Return one line of text with escapes, such as `\x1b`, for control characters and line ends."""
    return _CONTROL.sub(_show, str(text))


def shorten(value: object, limit: int = 80) -> str:
    """Return the text of a value for a message: its beginning, if it is long."""
    text = value if isinstance(value, str) else _text_of(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def pluralise(number: int, noun: str, plural: str = "") -> str:
    """Return e.g. '1 member' or '1,200 members'; the plural of some nouns is given."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_setting(value: Any) -> Any:
    """Return a setting as tables show it: numbers and words unchanged, lists as on the command line."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(str(format_setting(part)) for part in value)}]"
    if isinstance(value, dict):  # which no setting is, but a stranger's members.json may hold
        return str(value)
    return "none" if value is None else value


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a whole number with thousands of digits, or an object of the user's that fails at this
        return f"a value of type {type(value).__name__}"


def escape_lines(text: object) -> str:
    """Return text with escapes for control characters, but with its line ends and tabs."""
    return _CONTROL_IN_LINE.sub(_show, str(text))


def say(text: str) -> None:
    """Print text that the user must know to stderr, with escapes, also with `UNBRAID_QUIET=1`.

    A closed or full stderr is ignored, since no message is worth the work it reports on.
    """
    try:
        if sys.stderr is not None:
            print(escape_lines(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def _show(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
