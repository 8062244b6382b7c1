"""Where the names in a config come from, if they are not part of this package.

A run stores this as modules.json. Opening the run imports nothing: it only says which file to pass.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from unbraid.config import Choice, Config
from unbraid.data.base import dataset as datasets
from unbraid.errors import RunError
from unbraid.latents import block, prior
from unbraid.methods import objective
from unbraid.models import model as models
from unbraid.models.multimodal import MODALITIES
from unbraid.networks import encoder, likelihood
from unbraid.plugins import describe_origin
from unbraid.printable import say
from unbraid.registry import Registry
from unbraid.store import RunFolder

MODULES = "modules"
"""Name of the JSON file."""


def list_origins(config: Config) -> list[dict[str, str]]:
    """Return kind, name, module, file and SHA-256 of everything in a config that a user's own code registered.

    The config of a second stage includes those of the stages before it.
    """
    found = []
    for registry, name in _list_names(config):
        if name in registry and (origin := describe_origin(registry[name].make)):
            entry = {"kind": registry.kind, "name": name, **origin}
            found += [entry] if entry not in found else []
    return found


def check_origins(folder: RunFolder) -> list[str]:
    """Raise a `RunError` if a run needs code that was not imported; return a note for each file that has changed."""
    stored = folder.read_json(MODULES).get("entries", [])
    if not stored:
        return []
    registries = {(registry.kind, name): registry for registry, name in _list_names(folder.config)}
    notes = []
    for entry in stored:
        kind, name, file = (str(entry.get(key, "")) for key in ("kind", "name", "file"))
        registry = registries.get((kind, name))
        if registry is None:
            continue
        if name not in registry:
            where = f"{file} (SHA-256 {str(entry.get('sha256', ''))[:12]}…)" if file else str(entry.get("module"))
            raise RunError(
                f"{folder.path} needs the {kind} '{name}' of {where}; pass it, unbraid --with {file or 'FILE.py'} …, "
                "or import it in Python before you open the run."
            )
        if change := _describe_change(entry, describe_origin(registry[name].make)):
            notes.append(f"{_name_owner(folder)} was trained with the {kind} '{name}' of {file}. {change}")
    return notes


def say_changed_code(folder: RunFolder) -> None:
    """Print a note for each file that has changed since a run was trained; once for all runs of a sweep."""
    for note in check_origins(folder):
        _say_once(note)


@functools.cache
def _say_once(note: str) -> None:
    say(f"note: {note}")


def _describe_change(stored: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """Return how a file differs from the one that a run was trained with; nothing if it is equal or not known."""
    before, after = stored.get("sha256"), now.get("sha256")
    if before is None or after is None or before == after:
        return ""
    other = stored.get("file") != now["file"]
    what = f"{now['file']} is another file" if other else "This file has changed since"
    return f"{what} (SHA-256 {before[:8]}…, now {after[:8]}…), so results may differ."


def _name_owner(folder: RunFolder) -> str:
    """Return the path of a run, or of the sweep that it is part of."""
    return str(folder.path.parent.parent if folder.in_sweep else folder.path)


def _list_names(config: Config) -> Iterator[tuple[Registry[Any, Any], str]]:
    yield objective, config.objective.name
    yield models, config.model
    yield datasets, config.data.name
    decoders = models[config.model].make.decoders if config.model in models else encoder
    for registry, section in ((encoder, config.encoder), (decoders, config.decoder), (likelihood, config.likelihood)):
        choices = section.settings.values() if section.name == MODALITIES else [section.as_dict()]
        for choice in choices:
            yield registry, Choice.from_dict(choice).name
    for latent in config.latents.values():
        yield block, latent["kind"]
    if config.prior is not None:
        yield prior, config.prior.name
    if config.parent is not None:
        yield from _list_names(Config.from_dict(config.parent["config"]))
