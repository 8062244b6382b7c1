"""What a name that a user typed stands for among the known ones.

Nothing here imports torch, so that the command line can refuse a misspelt name before it does.
"""

import os
from collections.abc import Iterable

from unbraid.errors import UsageError, unknown

DEMO = "demo"
"""Name of the run that is part of the package."""

HUB = "hf://"
"""Start of the address of a run on the Hugging Face hub."""

PUBLISHED_PROTOCOLS = ("disentanglement_lib", "chen2018")
"""Protocols of metrics that repeat published code to the letter; they run only by name."""

FULL = "full"
"""Suite of every metric that one model and its data allow, without costly and published protocols."""


def unknown_data(data: str, known: Iterable[str]) -> UsageError:
    """Return an error for data that are neither a known data set nor a folder or file."""
    if "/" in data or os.sep in data:
        return UsageError(f"There is no folder or file {data}.")
    return unknown("data set, folder or file", data, known)


def list_metric_names(known: Iterable[str]) -> set[str]:
    """Return every name that may stand for metrics: METRIC/PROTOCOL, METRIC, a published protocol, or `full`."""
    full_names = set(known)
    return full_names | {name.partition("/")[0] for name in full_names} | {*PUBLISHED_PROTOCOLS, FULL}


def match_experiments(name: str, known: Iterable[str]) -> list[str]:
    """Return the known experiments of PAPER, or the one named PAPER/ID."""
    name = name.removesuffix("/")  # shells complete a folder's name with a slash
    paper, slash, _ = name.partition("/")
    names = [each for each in known if each.startswith(f"{paper}/")]
    if not names:
        raise unknown("paper", paper, {each.partition("/")[0] for each in known})
    if slash and name not in names:
        raise unknown("experiment", name, names)
    return [name] if slash else names
