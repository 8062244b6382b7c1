"""The command show: everything about one registered name."""

import difflib
import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, app
from unbraid.cli.printing import print_json
from unbraid.cli.references import spell_out
from unbraid.cli.source_names import DATASETS, OBJECTIVES, registered_names
from unbraid.cli.streams import echo
from unbraid.errors import UsageError
from unbraid.registry import describe_type

KINDS = {
    "objective": ("unbraid.methods", "objective"),
    "encoder": ("unbraid.networks", "encoder"),
    "decoder": ("unbraid.networks", "decoder"),
    "refiner": ("unbraid.networks", "refiner"),
    "flow": ("unbraid.networks", "flow"),
    "likelihood": ("unbraid.networks", "likelihood"),
    "latent": ("unbraid.latents", "block"),
    "prior": ("unbraid.latents", "prior"),
    "data set": ("unbraid.data", "dataset"),
    "metric": ("unbraid.metrics", "metric"),
    "experiment": ("unbraid.papers", "experiment"),
}
"""Module and name of each registry."""


def _complete(incomplete: str) -> list[str]:
    names = registered_names(*OBJECTIVES) + registered_names(*DATASETS)
    return [name for name in names if name.startswith(incomplete)]


@app.command(
    epilog="Examples:  unbraid show beta-tcvae  ·  unbraid show mig  ·  unbraid show conv-small  ·  unbraid show images"
)
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="An objective, network, metric (or metric/protocol), data set, latent, prior or experiment.",
            autocompletion=_complete,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show formula, settings with their defaults, and reference of anything that has a name."""
    found = list(find_entries(name))
    if not found:
        known = [each for kind in KINDS for each in _registry(kind)]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(f"Nothing is called '{name}'.{hint} unbraid list objectives (networks, …) lists all names.")
    facts = [_describe(kind, entry) for kind, entry in found]
    if as_json:
        print_json(facts)
        return
    echo("\n\n".join(_format(each) for each in facts))


def find_entries(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the kind and the entry of everything with this name; `mig` finds every protocol of it."""
    for kind in KINDS:
        registry = _registry(kind)
        for each in registry:
            if each == name or (kind == "metric" and each.partition("/")[0] == name):
                yield kind, registry[each]


def _registry(kind: str) -> Any:
    import importlib

    module, attribute = KINDS[kind]
    if kind == "experiment":
        importlib.import_module(module)  # registers the experiments
        module = "unbraid.experiments"
    return getattr(importlib.import_module(module), attribute)


def _describe(kind: str, entry: Any) -> dict[str, Any]:
    settings = {
        name: {"default": _plain(parameter.default), "type": describe_type(parameter.annotation)}
        for name, parameter in entry.settings.items()
    }
    facts = {"name": entry.name, "kind": kind, "what": inspect.getdoc(entry.make) or "", "settings": settings}
    defaults = getattr(entry.facts, "defaults", None)
    if defaults:
        facts["defaults"] = {key: str(value) for key, value in defaults.items()}
    if formula := _find_formula(entry.make):
        facts["formula"] = formula
    return {**facts, "year": entry.year, "reference": spell_out(entry.reference)}


def _find_formula(make: Any) -> str:
    """Return the docstring of the module of a method that has one of its own, which states its formula."""
    module = inspect.getmodule(getattr(make, "__wrapped__", make))
    own = module is not None and ".methods." in module.__name__ and not module.__name__.endswith(".presets")
    return inspect.getdoc(module) or "" if own else ""


def _format(facts: dict[str, Any]) -> str:
    kind = ", ".join(str(part) for part in (facts["kind"], facts["year"]) if part)
    lines = [f"{facts['name']}  ({kind})", "", facts["what"]]
    if "formula" in facts:
        lines += ["", facts["formula"]]
    if facts["settings"]:
        width = max(map(len, facts["settings"]))
        lines += ["", "Settings:"]
        lines += [
            f"  {name:{width}}  {setting['default']}  ({setting['type']})"
            for name, setting in facts["settings"].items()
        ]
    if "defaults" in facts:
        lines += ["", "Defaults of this recipe: " + " ".join(f"{k}={v}" for k, v in facts["defaults"].items())]
    if facts["reference"]:
        lines += ["", f"Reference: {facts['reference']}"]
    return "\n".join(lines)


def _plain(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return "needed"
    return "none" if default is None else default if isinstance(default, (int, float, str)) else str(default)
