"""Latent blocks from the settings that a user typed."""

from collections.abc import Mapping
from typing import Any

from unbraid.errors import UsageError, unknown
from unbraid.latents.blocks import block
from unbraid.registry import coerce
from unbraid.store import select_prefix

BLOCK_NAMES = {"normal": "z", "correlated-normal": "z", "concrete": "c", "bernoulli": "b", "quantised": "z"}


def parse_latents(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the blocks of `latents=normal:10+concrete:10`, `z=10` and settings as `latents.c.temperature=0.5`.

    A Normal block is named z, a Concrete one c, a Bernoulli one b; several of a kind are numbered: c_0, c_1. The number
    after a colon counts coordinates, or the classes of a Concrete variable. `latents=none` has no block, for a stage
    that adds no latents to those of the run that it refines.
    """
    text = settings.get("latents", "normal")
    if text is not None and not isinstance(text, str):
        raise UsageError(f"latents must be blocks joined by +, as normal:10+concrete:10, not {text!r}.")
    parts = [] if text is None else [part.strip().partition(":") for part in text.split("+")]
    letters = [BLOCK_NAMES.get(kind, kind) for kind, _, _ in parts]
    blocks: dict[str, dict[str, Any]] = {}
    for position, (kind, _, count) in enumerate(parts):
        letter = letters[position]
        name = letter if letters.count(letter) == 1 else f"{letter}_{letters[:position].count(letter)}"
        blocks[name] = _parse_block(kind, name, count, settings)
    _refuse_unknown_blocks(settings, blocks)
    return blocks


def refuse_two_sizes(settings: Mapping[str, Any]) -> None:
    """Raise a `UsageError` if both `z` and a number in `latents` give the size of z."""
    text = settings.get("latents")
    for part in text.split("+") if "z" in settings and isinstance(text, str) else ():
        kind, _, count = part.strip().partition(":")
        if count and BLOCK_NAMES.get(kind) == "z":
            raise UsageError(f"z={settings['z']} and latents={text} both give the number of latents; leave one out.")


def _parse_block(kind: str, name: str, count: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    entry = block[kind]
    block_settings = select_prefix(f"latents.{name}.", settings)
    if name == "z" and "z" in settings:
        size = coerce("z", settings["z"], int)
        if size < 1:
            raise UsageError(f"z must be at least 1, not {size}: it is the number of latents.")
        block_settings = {"size": size, **block_settings}
    elif count:
        if not count.isdecimal():
            raise UsageError(f"latents={kind}:{count} needs a whole number after its colon.")
        block_settings = {"classes" if "classes" in entry.settings else "size": int(count), **block_settings}
    return {"kind": kind, **entry.resolve(block_settings)}


def _refuse_unknown_blocks(settings: Mapping[str, Any], blocks: Mapping[str, Any]) -> None:
    for key in settings:
        section, *rest = key.split(".")
        if section == "latents" and rest and (rest[0] not in blocks or len(rest) != 2):
            raise unknown("latent block", rest[0], blocks)
    if "z" in settings and "z" not in blocks:
        present = f"these latents are {', '.join(blocks)}" if blocks else "this run has no latents"
        raise UsageError(f"z is the size of a Normal block named z, but {present}.")
