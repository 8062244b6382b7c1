"""Where the names in a config come from, if they are not part of this package.

A run stores this as modules.json. Opening the run imports nothing: it only says which file to pass.
"""

from collections.abc import Iterator
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
from unbraid.registry import Registry
from unbraid.store import RunFolder

MODULES = "modules"
"""Name of the JSON file."""


def list_origins(config: Config) -> list[dict[str, str]]:
    """Return kind, name, module, file and SHA-256 of everything in a config that a user's own code registered."""
    found = []
    for registry, name in _list_names(config):
        if name in registry and (origin := describe_origin(registry[name].make)):
            found.append({"kind": registry.kind, "name": name, **origin})
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
        now = describe_origin(registry[name].make).get("sha256")
        if now is not None and now != entry.get("sha256"):
            notes.append(f"{file} has changed since this run was trained with its {kind} '{name}'.")
    return notes


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
