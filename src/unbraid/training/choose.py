"""Settings that follow from the data: networks, likelihood, latents, batch, learning rate, steps and early stopping.

Only data of the user's own are looked at (a folder, an array, a torch Dataset, a table), and only settings that nobody
gave: neither the user nor the recipe. Each rule returns a value and the reason for it. The values become part of the
config, so that a run repeats from its config alone; they depend on nothing but the data, the recipe and other settings.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from unbraid.config import Choice, Training
from unbraid.data.base import dataset as datasets
from unbraid.data.factors import FactorDataset
from unbraid.data.find import GIVEN
from unbraid.data.modality import Modality
from unbraid.data.splits import split
from unbraid.data.tables import columns_of
from unbraid.errors import UsageError
from unbraid.methods import objective
from unbraid.models import model as models
from unbraid.networks import decoder as decoders, encoder as encoders
from unbraid.networks.base import SMALLEST_SIDE
from unbraid.objectives import bind
from unbraid.printable import pluralise
from unbraid.store import select_prefix
from unbraid.training.cost import SECONDS_ALLOWED, estimate_seconds
from unbraid.types import Shape

SMALL_SIDE = 48
"""Images with a shorter side below this have `conv-small`."""

ROWS_TO_JUDGE = 256
"""Rows, evenly spaced, from which the kind of the pictures is judged."""

ROWS_PER_READ = 8192
"""Rows of vectors that are read at a time: all of them may not fit in memory."""

SILHOUETTE_SHARE = 0.95
"""Grey pictures of which this share of all pixels is black or white, within a tenth, are silhouettes."""

SHAPE_DECODER = "broadcast-pixel"
SHAPE_NETWORKS = {"encoder": "mlp", "decoder": SHAPE_DECODER}
LATENTS = 10
BATCHES = (16, 32, 64, 128, 256)
BATCHES_PER_EPOCH = 20
BATCHES_PER_EPOCH_OF_SHAPES = 5
"""The decoder of shapes is cheap, and large batches estimate the total correlation better."""

MIN_EPOCHS, MAX_EPOCHS = 50, 200
SECONDS_WANTED = 90.0
"""Seconds of two cores within which the number of epochs may grow from the least to the most."""

MIN_STEPS, MAX_STEPS = 1_000, 20_000
MAX_STAGE_STEPS = 5_000
"""Most steps of a second stage, whose networks are larger than those of most first stages."""

SHAPE_BETA_PER_PIXEL = 25 / 32
"""Weight beta of `beta-tcvae` on shapes, by the side of the picture; the demo has 25 for 32 pixels."""

VALUES_PER_LABEL_WEIGHT = 100
"""Values of the largest picture per unit of a label's weight, if a row has both."""

PATCHED_SIDE = 64
"""Shapes of at least this side are drawn by patches of 2x2 pixels, in a quarter of the time."""

HELD_OUT_SHARE = 0.1
MIN_ROWS_TO_HOLD_OUT = 200
MIN_HELD_OUT_TO_SCORE = 1_000
"""Data with factors keep all rows for scores unless the held-out ones are this many: scores of few rows are biased."""

PATIENCE = 10


class ChosenSetting(NamedTuple):
    """A setting, the value that follows from the data, and the reason."""

    name: str
    value: Any
    reason: str

    @property
    def words(self) -> str:
        """The setting as a user types it."""
        value = str(self.value).lower() if self.value is None or isinstance(self.value, bool) else self.value
        listed = isinstance(value, (tuple, list))
        return f"{self.name}=[{','.join(map(str, value))}]" if listed else f"{self.name}={value}"

    def __str__(self) -> str:
        return f"{self.words}: {self.reason}"


def choose_settings(
    recipe: str,
    data: Choice,
    dataset: FactorDataset,
    given: Mapping[str, Any],
    single: bool = True,
    named: bool = False,
) -> list[ChosenSetting]:
    """Return the settings of a run that follow from its data; for `named` data sets only if asked.

    `given` are the user's settings. A run of a sweep is not `single`: its length is fixed.
    """
    Training.from_settings({key: value for key, value in given.items() if key in Training.fields()})  # may raise
    if not named and not is_own(data):
        return []
    entry = objective[recipe]
    known = {**entry.facts.defaults, **given}
    chosen: list[ChosenSetting] = []

    def add(*several: ChosenSetting) -> None:
        for each in several:
            if each.name not in known:
                chosen.append(each)
                known[each.name] = each.value

    several_players = len(bind(recipe, entry.resolve(_settings_of(recipe, known))).players()) > 1
    if entry.facts.stage is None:
        add(*_choose_networks(recipe, dataset, known))
        add(*_choose_likelihoods(dataset, known))
        add(*_choose_latents(recipe, dataset, known))
        add(*_choose_weights(recipe, dataset, known))
    if single and "steps" not in known and not several_players:
        add(*_choose_held_out(dataset, known))
    add(_choose_batch(dataset, known))
    add(*_choose_rate(known))
    if "steps" not in known:
        add(_choose_steps(dataset, known, MAX_STEPS if entry.facts.stage is None else MAX_STAGE_STEPS))
    return chosen


def is_own(data: Choice) -> bool:
    """Return whether data are the user's own, and not a named data set."""
    return data.name == GIVEN or (data.name in datasets and datasets[data.name].facts.yours)


def choose_image_network(shape: Shape) -> tuple[str, str]:
    """Return a network for images of a shape, and the reason."""
    size = f"{shape[1]}x{shape[2]}"
    if min(shape[1:]) < SMALLEST_SIDE:
        return "mlp", f"{size} pixels are too few for convolutions"
    if min(shape[1:]) < SMALL_SIDE:
        return "conv-small", f"two convolutions suffice for {size} pixels"
    return "conv-locatello", f"convolutions fit images of {size} pixels"


def is_silhouette(modality: Modality, device: torch.device) -> bool:
    """Return whether a modality holds grey pictures of shapes: almost all pixels are black or white."""
    if modality.kind != "image" or modality.shape[0] != 1 or min(modality.shape[1:]) < SMALLEST_SIDE:
        return False
    rows = torch.arange(len(modality.values), device=device)
    rows = rows if modality.present is None else rows[modality.present]
    pixels = modality.rows(rows[:: max(1, len(rows) // ROWS_TO_JUDGE)])
    return float(((pixels < 0.1) | (pixels > 0.9)).float().mean()) >= SILHOUETTE_SHARE


def _choose_networks(recipe: str, dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    made_by_model = models[objective[recipe].facts.model].make.decoders is not decoders
    if "network" in known or objective[recipe].facts.network is not None or made_by_model:
        return
    sides = [side for side in ("encoder", "decoder") if side not in known]
    given = {side: _list_settings(side, dataset, known) for side in sides}
    for name, modality in dataset.modalities.items():
        of = f".{name}" if dataset.multimodal else ""
        fits_shapes = all(_takes_settings(side, network, given.get(side)) for side, network in SHAPE_NETWORKS.items())
        if fits_shapes and is_silhouette(modality, dataset.device):
            yield from _choose_networks_of_shapes(of, modality.shape)
            continue
        if modality.kind == "image":
            network, reason = choose_image_network(modality.shape)
            network = network.replace("conv-locatello", "conv-daunhawer") if dataset.multimodal else network
        else:
            network, reason = (
                "mlp",
                f"{name} is a {modality.kind}" if of else f"rows are vectors of {modality.shape[0]:,}",
            )
        for side in sides:  # the user's settings of a network belong to one that has them
            if _takes_settings(side, network, given[side]):
                yield ChosenSetting(f"{side}{of}", network, reason)


def _choose_networks_of_shapes(of: str, shape: Shape) -> Iterator[ChosenSetting]:
    reason = "almost all pixels are black or white: shapes need no convolutions"
    yield ChosenSetting(f"encoder{of}", SHAPE_NETWORKS["encoder"], reason)
    yield ChosenSetting(f"decoder{of}", SHAPE_DECODER, "it draws shapes from positions, which separates factors best")
    yield ChosenSetting(f"decoder{of}.channels", 16, "one small network per pixel suffices for a shape")
    if min(shape[1:]) >= PATCHED_SIDE and not any(length % 2 for length in shape[1:]):
        yield ChosenSetting(f"decoder{of}.patch", 2, "one network per 2x2 pixels takes a quarter of the time")


def _draws_shapes(known: Mapping[str, Any]) -> bool:
    return any(value == SHAPE_DECODER for key, value in known.items() if key.partition(".")[0] == "decoder")


def _list_settings(side: str, dataset: FactorDataset, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in `known` that all encoders or all decoders share, such as `width` of `encoder.width`."""
    names = dataset.modalities if dataset.multimodal else ()
    return {key: v for key, v in select_prefix(f"{side}.", known).items() if key.partition(".")[0] not in names}


def _takes_settings(side: str, network: str, given: Mapping[str, Any] | None) -> bool:
    """Return whether a network takes the settings that a user gave; None if the user chose another network."""
    try:
        (encoders if side == "encoder" else decoders)[network].resolve(given or {})
    except UsageError:
        return False
    return given is not None


def _choose_likelihoods(dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    if dataset.multimodal:
        for name, modality in dataset.modalities.items():
            if modality.kind == "vector" and "likelihood" not in known and f"likelihood.{name}" not in known:
                yield ChosenSetting(f"likelihood.{name}.learned", True, f"the noise of {name} is not known")
        return
    if len(dataset.shape) == 3:
        yield ChosenSetting("likelihood", "bernoulli", "pixels are between 0 and 1")
        return
    if any(column.classes for column in columns_of(dataset)):
        if "likelihood" not in known:
            yield ChosenSetting("likelihood", "mixed", "the table has numbers and classes")
            yield ChosenSetting("likelihood.learned", True, "the noise of the numbers is not known")
        return
    parts = map(dataset.images, torch.arange(len(dataset), device=dataset.device).split(ROWS_PER_READ))
    if all(bool(((values == 0) | (values == 1)).all()) for values in parts):
        yield ChosenSetting("likelihood", "bernoulli", "all values are 0 or 1")
    elif "likelihood" not in known:
        yield ChosenSetting("likelihood", "gaussian", "values are real numbers")
        yield ChosenSetting("likelihood.learned", True, "the noise of the values is not known")


def _choose_latents(recipe: str, dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    if dataset.multimodal or models[objective[recipe].facts.model].make.multimodal or len(dataset.shape) != 1:
        return
    if dataset.shape[0] < LATENTS and "latents" not in known and "groups" not in known:
        yield ChosenSetting("z", dataset.shape[0], f"a row has only {dataset.shape[0]} values")


def _choose_weights(recipe: str, dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    pictures = not dataset.multimodal and len(dataset.shape) == 3
    if recipe == "beta-tcvae" and pictures and known.get("decoder") == SHAPE_DECODER:
        side = min(dataset.shape[1:])
        reason = f"the reconstruction of an outline grows with the {side} pixels of a side"
        yield ChosenSetting("beta", float(round(SHAPE_BETA_PER_PIXEL * side)), reason)
    modalities = dataset.modalities.values() if "weights" in objective[recipe].settings else ()
    labels = [modality.name for modality in modalities if modality.kind == "label"]
    largest = max((math.prod(modality.shape) for modality in modalities if modality.kind == "image"), default=0)
    weight = round(largest / VALUES_PER_LABEL_WEIGHT)
    if labels and weight > 1:
        reason = "a label adds a nat or two to the loss and a picture hundreds, and both should count"
        yield ChosenSetting("weights", tuple(f"{label}:{weight}" for label in labels), reason)


def _choose_held_out(dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    if "split" in known or dataset.held_out is not None:
        if split(dataset, known.get("split", "default")).held_out is None:
            return
    else:
        rows = round(HELD_OUT_SHARE * len(dataset))
        if len(dataset) < MIN_ROWS_TO_HOLD_OUT or (dataset.factors and rows < MIN_HELD_OUT_TO_SCORE):
            return
        yield ChosenSetting("split", HELD_OUT_SHARE, f"{rows:,} rows are held out, to see when training stops helping")
    yield ChosenSetting("patience", PATIENCE, "training ends early when the held-out loss no longer improves")


def _choose_batch(dataset: FactorDataset, known: Mapping[str, Any]) -> ChosenSetting:
    rows = _count_training_rows(dataset, known)
    batches = BATCHES_PER_EPOCH_OF_SHAPES if _draws_shapes(known) else BATCHES_PER_EPOCH
    fitting = [batch for batch in BATCHES if batch * batches <= rows]
    batch = fitting[-1] if fitting else max(1, min(BATCHES[0], rows))
    made = pluralise(max(1, rows // batch), "batch", "batches")
    reason = f"{pluralise(rows, 'row')} to train on {'makes' if rows == 1 else 'make'} {made}"
    return ChosenSetting("batch", batch, reason)


def _choose_rate(known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    per_pixel = _draws_shapes(known)
    why = "a decoder of few parameters learns at a high rate" if per_pixel else "the usual rate of Adam"
    yield ChosenSetting("lr", 5e-3 if per_pixel else 1e-3, why)
    if "steps" not in known:  # a schedule belongs to the length that we choose
        yield ChosenSetting("decay", "cosine", "the rate falls to 0, so that the end is settled")


def _choose_steps(dataset: FactorDataset, known: Mapping[str, Any], limit: int) -> ChosenSetting:
    rows, batch = _count_training_rows(dataset, known), known["batch"]
    per_epoch = estimate_seconds(dataset, known, 1) * rows / batch
    epochs = min(MAX_EPOCHS, max(MIN_EPOCHS, SECONDS_WANTED / per_epoch if per_epoch else MAX_EPOCHS))
    steps = min(limit, max(MIN_STEPS, 100 * round(epochs * rows / batch / 100)))
    reason = f"{steps * batch / rows:,.0f} passes over {pluralise(rows, 'row')}"
    seconds = estimate_seconds(dataset, known, steps)
    if seconds > SECONDS_ALLOWED:
        steps = max(1, int(steps * SECONDS_ALLOWED / seconds))
        minutes = f"{SECONDS_ALLOWED / 60:.0f} minutes on two cores"
        reason = (
            f"{steps * batch / rows:,.1f} passes over {pluralise(rows, 'row')}, about {minutes}; set steps=… for more"
        )
    return ChosenSetting("steps", steps, reason)


def _count_training_rows(dataset: FactorDataset, known: Mapping[str, Any]) -> int:
    return len(split(dataset, known.get("split", "default")).train)


def _settings_of(recipe: str, known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in known.items() if key in objective[recipe].settings}
