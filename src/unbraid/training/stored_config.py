"""Train a stored config again: the settings that lead to it, and changes to them."""

from collections.abc import Iterator, Mapping
from typing import Any

from unbraid.config import Choice, Config
from unbraid.data.base import dataset as datasets
from unbraid.data.find import GIVEN, find_missing_path
from unbraid.errors import UsageError
from unbraid.methods import objective
from unbraid.models import CUSTOM
from unbraid.models.multimodal import MODALITIES, SHARED, private_block
from unbraid.registry import Entry

TABLE = "table"
"""The data set that reads a table; its columns have widths."""

SIDES = ("encoder", "decoder", "likelihood")


def list_settings_of(config: Config, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return flat settings, with `data`, from which `configure` makes this config again, apart from `changes`.

    A changed name (`encoder=mlp`, `data=mnist`, `network=mlp`, `latents=…`) drops the stored settings of what it
    replaces. The widths of a table's columns are left to the table, which may have changed. Everything else stays as
    it is stored, also what a default or the data would choose otherwise.
    """
    if config.parent is not None:
        raise UsageError("This config refines another run; train it again with unbraid refine RUN.")
    changes = changes or {}
    stored = {key: value for key, value in _list_all(config) if not _is_replaced(key, changes)}
    if config.data.name == TABLE or "data" in changes:
        stored = {key: value for key, value in stored.items() if key not in _list_width_settings(config)}
    for key in ("data", *SIDES):
        if stored.get(key) in (GIVEN, CUSTOM):
            what = "data that were passed in" if key == "data" else f"a module of your own as {key}"
            raise UsageError(f"This config has {what}, which it does not hold; add {key}=NAME.")
    if "data" not in changes and (missing := find_missing_path(_change_data(config.data, changes))) is not None:
        raise UsageError(
            f"This config has data in {missing}, a relative path that does not exist here; run the command from the "
            "folder in which it was trained, or add data=PATH."
        )
    return {**stored, **changes}


def _change_data(data: Choice, changes: Mapping[str, Any]) -> Choice:
    changed = {key.removeprefix("data."): value for key, value in changes.items() if key.startswith("data.")}
    return Choice(data.name, {**data.settings, **changed})


def _list_all(config: Config) -> Iterator[tuple[str, Any]]:
    yield from _fill(objective[config.objective.name], config.objective.settings).items()
    yield from {"patience": None, **config.training.as_dict()}.items()
    yield "groups", config.groups
    yield from [("prior", None)] if config.prior is None else _list_choice("prior", config.prior)
    data = config.data
    known = data.name in datasets
    yield from _list_choice("data", Choice(data.name, _fill(datasets[data.name], data.settings)) if known else data)
    several = config.encoder.name == MODALITIES
    for side in SIDES:
        choice: Choice = getattr(config, side)
        if several:
            for modality, stored in choice.settings.items():
                yield from _list_choice(f"{side}.{modality}", Choice.from_dict(stored))
        else:
            yield from _list_choice(side, choice)
    yield from _list_shared_and_private(config) if several else _list_blocks(config)


def _list_choice(key: str, choice: Choice) -> Iterator[tuple[str, Any]]:
    """Yield `encoder=mlp` and `encoder.hidden=…`."""
    yield key, choice.name
    for setting, value in choice.settings.items():
        yield f"{key}.{setting}", value


def _list_blocks(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the latents of one modality: the kinds of their blocks, and the settings of each block."""
    yield "latents", "+".join(block["kind"] for block in config.latents.values()) or None
    for name, block in config.latents.items():
        for setting, value in block.items():
            if setting != "kind":
                yield f"latents.{name}.{setting}", value


def _list_shared_and_private(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of shared latents and of each modality's private ones, which may be 0."""
    yield "c", config.latents[SHARED]["size"]
    for modality in config.encoder.settings:
        block = private_block(modality)
        yield f"latents.{block}.size", config.latents.get(block, {"size": 0})["size"]


def _list_width_settings(config: Config) -> list[str]:
    """Return the keys of the widths of columns that a likelihood stores."""
    if config.encoder.name == MODALITIES:
        return [f"likelihood.{modality}.widths" for modality in config.encoder.settings]
    return ["likelihood.widths"]


def _fill(entry: Entry[Any, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of settings that a config leaves out because they were added later."""
    return {**{key: entry.settings[key].default for key in entry.facts.later}, **settings}


def _is_replaced(key: str, changes: Mapping[str, Any]) -> bool:
    """Return whether a change makes a stored setting obsolete."""
    parts = key.split(".")
    if any(".".join(parts[:end]) in changes for end in range(1, len(parts) + 1)):
        return True
    for_all_modalities = f"{parts[0]}.{parts[-1]}" in changes
    return (
        (len(parts) == 3 and parts[0] in SIDES and for_all_modalities)
        or ("network" in changes and parts[0] in ("encoder", "decoder"))
        or ("z" in changes and key == "latents.z.size")
        or ("s" in changes and key.startswith(f"latents.{private_block('')}"))
    )
