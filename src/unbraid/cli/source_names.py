"""Registered names, read from the source of this package: completion and early checks must not wait for torch."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent

OBJECTIVES = ("methods", "objective|preset")
DATASETS = ("data", "dataset")
METRICS = ("metrics", r"\w*metric\w*")
EXPERIMENTS = ("papers", r"experiment(?:\.add)?|add_\w+")
"""Each is a package and a pattern for the decorators or functions that register a name in it."""


def registered_names(package: str, decorators: str) -> list[str]:
    """Return the names that the source of a package registers."""
    pattern = re.compile(rf'^@?(?:{decorators})\(\s*"([^"]+)"', re.MULTILINE)
    files = (PACKAGE / package).rglob("*.py")
    return sorted({name for path in files for name in pattern.findall(path.read_text("utf-8"))})


def occurs_in_source(word: str) -> bool:
    """Return whether a word is anywhere in the source of this package; a setting of any part of it is."""
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return any(pattern.search(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py"))
