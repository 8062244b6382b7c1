"""Latent blocks from what a user typed."""

from collections.abc import Mapping
from typing import Any

from unbraid.errors import UsageError, unknown
from unbraid.latents.blocks import block
from unbraid.registry import coerce
from unbraid.store import select_prefix

NAMES = {"normal": "z", "correlated-normal": "z", "concrete": "c", "bernoulli": "b", "quantised": "z"}


def latents_of(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the blocks of `latents=normal:10+concrete:10`, `z=10` and settings as `latents.c.temperature=0.5`.

    A Normal block is named z, a Concrete one c, a Bernoulli one b; several of a kind are numbered: c_0, c_1. What
    follows a colon is the number of coordinates, or of classes of a Concrete variable. `latents=none` has no block: a
    stage that adds no latents to those of the run that it refines.
    """
    text = given.get("latents", "normal")
    if text is None:
        _refuse_others(given, {})
        return {}
    if not isinstance(text, str):
        raise UsageError(f"latents must be blocks joined by +, as normal:10+concrete:10, not {text!r}.")
    asked = [part.strip().partition(":") for part in text.split("+")]
    letters = [NAMES.get(kind, kind) for kind, _, _ in asked]
    blocks: dict[str, dict[str, Any]] = {}
    for position, (kind, _, count) in enumerate(asked):
        letter = letters[position]
        name = letter if letters.count(letter) == 1 else f"{letter}_{letters[:position].count(letter)}"
        blocks[name] = _block(kind, name, count, given)
    _refuse_others(given, blocks)
    return blocks


def refuse_both(given: Mapping[str, Any]) -> None:
    """Raise a `UsageError` if both `z` and a number in `latents` say how many latents there are."""
    text = given.get("latents")
    for part in text.split("+") if "z" in given and isinstance(text, str) else ():
        kind, _, count = part.strip().partition(":")
        if count and NAMES.get(kind) == "z":
            raise UsageError(f"z={given['z']} and latents={text} both say how many latents there are; leave one out.")


def _block(kind: str, name: str, count: str, given: Mapping[str, Any]) -> dict[str, Any]:
    entry = block[kind]
    own = select_prefix(f"latents.{name}.", given)
    if name == "z" and "z" in given:
        own = {"size": coerce("z", given["z"], int), **own}
    elif count:
        if not count.isdecimal():
            raise UsageError(f"latents={kind}:{count} needs a whole number behind its colon.")
        own = {"classes" if "classes" in entry.settings else "size": int(count), **own}
    return {"kind": kind, **entry.resolve(own)}


def _refuse_others(given: Mapping[str, Any], blocks: Mapping[str, Any]) -> None:
    """Raise a `UsageError` for settings of blocks that do not exist."""
    for key in given:
        section, *rest = key.split(".")
        if section == "latents" and rest and (rest[0] not in blocks or len(rest) != 2):
            raise unknown("latent block", rest[0], blocks)
    if "z" in given and "z" not in blocks:
        there = f"these latents are {', '.join(blocks)}" if blocks else "there are no latents here"
        raise UsageError(f"z is the size of a Normal block named z, and {there}.")
