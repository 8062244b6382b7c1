"""The networks, likelihoods and latents of a config with several modalities."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unbraid.config import Choice
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.modality import Kind, Modality
from unbraid.data.table_columns import TableColumn
from unbraid.errors import UsageError, unknown
from unbraid.latents import block
from unbraid.models import Model
from unbraid.models.multimodal import MODALITIES, SHARED, private_block
from unbraid.networks import decoder as decoders, encoder as encoders, likelihood as likelihoods
from unbraid.printable import shorten
from unbraid.registry import Registry, coerce
from unbraid.store import select_prefix
from unbraid.types import Layout, Shape

SIZES = ("c", "s")
"""Settings for the number of shared latents, and of private latents per modality."""

LIKELIHOODS = {"image": "bernoulli", "vector": "gaussian", "label": "categorical"}


class Sections(NamedTuple):
    """Networks, likelihood and latents of a config; each holds one choice per modality if there are several."""

    encoder: Choice
    decoder: Choice
    likelihood: Choice
    latents: dict[str, dict[str, Any]]


def check_modalities(recipe: str, model: type[Model], dataset: FactorDataset) -> None:
    """Raise a `UsageError` unless recipe and data both have one modality, or both have several."""
    if model.multimodal and not dataset.multimodal:
        raise UsageError(
            f"{recipe} learns from several modalities, and {dataset.name} has one; use data=sprites-pairs, your own "
            "CSV file (data=things.csv, short for data=paired), or arrays by name."
        )
    if dataset.multimodal and not model.multimodal:
        names = ", ".join(dataset.modalities)
        raise UsageError(f"{recipe} learns from one modality, and {dataset.name} has {names}; use partitioned-mvae.")


UNITS = ("channels", "hidden", "width", "widths")
"""Settings of networks that are numbers of units."""


def make_choice(registry: Registry[Any, Any], name: Any, settings: Mapping[str, Any]) -> Choice:
    """Return a registered name with all its settings; raise a `UsageError` if a layer of a network has no units."""
    if not isinstance(name, str):
        raise UsageError(f"{registry.kind} must be a registered name, not {name!r}.")
    choice = Choice(name, registry[name].resolve(settings))
    for key, value in choice.settings.items():
        if key in UNITS and any(units < 1 for units in (value if isinstance(value, tuple) else (value,))):
            raise UsageError(f"{key} of '{name}' must be at least 1, not {value}.")
    return choice


def choose_sections(recipe: str, dataset: FactorDataset, given: Mapping[str, Any]) -> Sections:
    """Return networks, likelihoods and latents by modality.

    `network`, `encoder`, `decoder` and `likelihood` name one for all modalities, `encoder.NAME` one for the modality
    NAME; `encoder.width` is a setting of all encoders that have it, and `encoder.NAME.width` of one. `c` is the number
    of shared latents, `s` that of each modality's private ones, `latents.s_NAME.size` that of one modality. A label has
    no private latents by default: the label would pass through them, and the shared latents would not learn it.
    """
    return Sections(
        _choose_section("encoder", encoders, dataset, given),
        _choose_section("decoder", decoders, dataset, given),
        _choose_section("likelihood", likelihoods, dataset, given),
        _choose_latents(recipe, dataset, given),
    )


def choose_modality_network(modality: Modality) -> str:
    """Return the default network for a modality; for 64x64 images it is that of daunhawer2019."""
    sides = modality.shape[1:] if modality.kind == "image" else ()
    if sides == (64, 64):
        return "conv-daunhawer"
    return "conv-small" if sides in ((28, 28), (32, 32)) else "mlp"


def _choose_section(
    side: str, registry: Registry[Any, Any], dataset: FactorDataset, given: Mapping[str, Any]
) -> Choice:
    settings, choices = select_prefix(f"{side}.", given), {}
    common = {key: value for key, value in settings.items() if key.partition(".")[0] not in dataset.modalities}
    used: set[str] = set()
    for name, modality in dataset.modalities.items():
        network = given.get("network") if side != "likelihood" else None
        default = LIKELIHOODS[modality.kind] if side == "likelihood" else choose_modality_network(modality)
        chosen = settings.get(name) or given.get(side) or network or default
        known = registry[chosen].settings if isinstance(chosen, str) else ()
        shared = {key: value for key, value in common.items() if key in known}
        used |= set(shared)
        if chosen == "mixed":
            shared = {"widths": (1,) * modality.shape[-1], **shared}
        choice = make_choice(registry, chosen, {**shared, **select_prefix(f"{name}.", settings)})
        choices[name] = choice.as_dict()
        if side == "likelihood":
            _refuse_unfit(choice, dataset.name, modality)
    for key in common:
        if key not in used:
            raise unknown(f"modality or setting of a {side}", key, dataset.modalities, of=dataset.name)
    return Choice(MODALITIES, choices)


def _choose_latents(recipe: str, dataset: FactorDataset, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the block c, and s_NAME for each modality with private latents."""
    if "z" in given or "latents" in given:
        raise UsageError(f"{recipe} has shared latents, c=5, and private ones, s=5, instead of z and latents.")
    shared, privates = (coerce(key, given.get(key, 5), int) for key in SIZES)
    kinds = {name: modality.kind for name, modality in dataset.modalities.items()}
    sizes = {
        SHARED: shared,
        **{private_block(name): 0 if kind == "label" else privates for name, kind in kinds.items()},
    }
    for key, value in select_prefix("latents.", given).items():
        name, _, setting = key.partition(".")
        if name not in sizes or setting != "size":
            raise unknown("setting of latents", key, [f"{each}.size" for each in sizes])
        sizes[name] = coerce(f"latents.{key}", value, int)
    for name, size in sizes.items():
        if size < (1 if name == SHARED else 0):
            raise UsageError(f"{name} has {size} latents; the shared c needs at least 1, a private block 0.")
    return {name: {"kind": "normal", **block["normal"].resolve({"size": n})} for name, n in sizes.items() if n}


def _refuse_unfit(likelihood: Choice, data: str, modality: Modality) -> None:
    where = f"{modality.name} of {data}"
    if likelihood.name == "categorical" and modality.kind != "label":
        raise UsageError(f"likelihood=categorical is for labels, and {modality.name} of {data} holds {modality.kind}s.")
    refuse_wrong_widths(likelihood, modality.kind, modality.shape, where, f"likelihood.{modality.name}")
    if isinstance(modality.values, Pixels):
        refuse_out_of_range(likelihood.name, modality.values, where, f"likelihood.{modality.name}")


def refuse_out_of_range(likelihood: str, pixels: Pixels, where: str, setting: str) -> None:
    """Raise a `UsageError` if a likelihood of probabilities is chosen for values outside [0, 1].

    The loss of a categorical one would have no lower bound.
    """
    if likelihood not in ("bernoulli", "categorical") or not pixels.stored.is_floating_point():
        return
    low, high = pixels.find_range()
    if not (low >= 0 and high <= 1):
        found = f"{where} has some from {low:g} to {high:g}"
        raise UsageError(f"likelihood={likelihood} needs values in [0, 1], but {found}; use {setting}=gaussian.")


def refuse_wrong_widths(
    likelihood: Choice, kind: Kind, shape: Shape, where: str, setting: str, columns: Sequence[TableColumn] = ()
) -> None:
    """Raise a `UsageError` if the columns of `likelihood=mixed` are not those of the data."""
    if likelihood.name != "mixed":
        return
    if kind != "vector":
        other = f"{setting}={LIKELIHOODS[kind]}"
        raise UsageError(
            f"likelihood=mixed is for numbers and classes of a table, and {where} holds {kind}s; use {other}."
        )
    widths = likelihood.settings["widths"]
    given = f"{setting}.widths=[{shorten(','.join(map(str, widths)))}]"
    if columns and tuple(widths) != tuple(column.width for column in columns):
        found = shorten(", ".join(f"{column.name} {column.width}" for column in columns), 400)
        raise UsageError(f"{given} does not fit {where}, whose columns have the widths {found}; leave it out.")
    if sum(widths) != shape[-1]:
        raise UsageError(f"{given} adds up to {sum(widths)}, and a row of {where} has {shape[-1]} values.")


def layout_to_json(layout: Layout) -> Any:
    return {n: list(shape) for n, shape in layout.items()} if isinstance(layout, Mapping) else list(layout)


def layout_from_json(stored: Any) -> Layout:
    return {n: tuple(shape) for n, shape in stored.items()} if isinstance(stored, Mapping) else tuple(stored)
