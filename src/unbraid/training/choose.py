"""Settings that follow from the data: networks, likelihood, latents, batch, learning rate, steps and early stopping.

Only data of the user's own are looked at (a folder, an array, a torch Dataset, a table), and only settings that nobody
gave: neither the user nor the recipe. Each rule returns a value and the reason for it. The values become part of the
config, so that a run repeats from its config alone; they depend on nothing but the data, the recipe and other settings.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from unbraid.config import Choice
from unbraid.data.base import dataset as datasets
from unbraid.data.factors import FactorDataset
from unbraid.data.find import GIVEN
from unbraid.data.splits import split
from unbraid.methods import objective
from unbraid.models import model as models
from unbraid.networks import decoder as decoders
from unbraid.networks.base import SMALLEST_SIDE
from unbraid.objectives import bind
from unbraid.training.cost import SECONDS_ALLOWED, estimate_seconds
from unbraid.types import Shape

SMALL_SIDE = 48
"""Images with a shorter side below this have `conv-small`."""

ROWS_TO_JUDGE = 256
"""Rows, evenly spaced, from which the kind of the pictures is judged."""

SILHOUETTE_SHARE = 0.95
"""Grey pictures of which this share of all pixels is black or white, within a tenth, are silhouettes."""

LATENTS = 10
BATCHES_PER_EPOCH = 10
BATCHES = (16, 32, 64, 128, 256)
EPOCHS = 100
MIN_STEPS, MAX_STEPS = 1_000, 20_000
MAX_STAGE_STEPS = 5_000
"""Most steps of a second stage, whose networks are larger than those of most first stages."""

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

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.name}={value}: {self.reason}"


def choose_settings(
    recipe: str, data: Choice, dataset: FactorDataset, given: Mapping[str, Any], single: bool = True
) -> list[ChosenSetting]:
    """Return the settings of a run that follow from its data; none for a named data set.

    `given` are the user's settings. A run of a sweep is not `single`: its length is fixed.
    """
    if not is_own(data):
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


def is_silhouette(dataset: FactorDataset) -> bool:
    """Return whether the pictures are grey, and almost all pixels black or white."""
    if len(dataset.shape) != 3 or dataset.shape[0] != 1:
        return False
    rows = torch.arange(0, len(dataset), max(1, len(dataset) // ROWS_TO_JUDGE), device=dataset.device)
    pixels = dataset.images(rows).float()
    return float(((pixels < 0.1) | (pixels > 0.9)).float().mean()) >= SILHOUETTE_SHARE


def _choose_networks(recipe: str, dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    made_by_model = models[objective[recipe].facts.model].make.decoders is not decoders
    if "network" in known or objective[recipe].facts.network is not None or made_by_model:
        return
    if dataset.multimodal:
        for name, modality in dataset.modalities.items():
            network, reason = "mlp", f"{name} is a {modality.kind}"
            if modality.kind == "image":
                network, reason = choose_image_network(modality.shape)
                network = network.replace("conv-locatello", "conv-daunhawer")
            for side in ("encoder", "decoder"):
                if side not in known:
                    yield ChosenSetting(f"{side}.{name}", network, reason)
        return
    if len(dataset.shape) == 1:
        network, reason = "mlp", f"rows are vectors of {dataset.shape[0]:,} values"
    elif is_silhouette(dataset) and not any(key.partition(".")[0] in ("encoder", "decoder") for key in known):
        yield ChosenSetting("encoder", "mlp", "almost all pixels are black or white: shapes need no convolutions")
        yield ChosenSetting(
            "decoder", "broadcast-pixel", "it draws shapes from positions, which separates factors best"
        )
        yield ChosenSetting("decoder.channels", 16, "one small network per pixel suffices for a shape")
        return
    else:
        network, reason = choose_image_network(dataset.shape)
    for side in ("encoder", "decoder"):
        yield ChosenSetting(side, network, reason)


def _choose_likelihoods(dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    if dataset.multimodal:
        for name, modality in dataset.modalities.items():
            if modality.kind == "vector" and "likelihood" not in known and f"likelihood.{name}" not in known:
                yield ChosenSetting(f"likelihood.{name}.learned", True, f"the noise of {name} is not known")
        return
    if len(dataset.shape) == 3:
        yield ChosenSetting("likelihood", "bernoulli", "pixels are between 0 and 1")
        return
    values = dataset.images(torch.arange(len(dataset), device=dataset.device))
    if bool(((values == 0) | (values == 1)).all()):
        yield ChosenSetting("likelihood", "bernoulli", "all values are 0 or 1")
    elif "likelihood" not in known:
        yield ChosenSetting("likelihood", "gaussian", "values are real numbers")
        yield ChosenSetting("likelihood.learned", True, "the noise of the values is not known")


def _choose_latents(recipe: str, dataset: FactorDataset, known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    if dataset.multimodal or models[objective[recipe].facts.model].make.multimodal or len(dataset.shape) != 1:
        return
    if dataset.shape[0] < LATENTS and "latents" not in known and "groups" not in known:
        yield ChosenSetting("z", dataset.shape[0], f"a row has only {dataset.shape[0]} values")


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
    fitting = [batch for batch in BATCHES if batch * BATCHES_PER_EPOCH <= rows]
    batch = fitting[-1] if fitting else max(1, min(BATCHES[0], rows))
    return ChosenSetting("batch", batch, f"{rows:,} rows to train on make {max(1, rows // batch):,} batches")


def _choose_rate(known: Mapping[str, Any]) -> Iterator[ChosenSetting]:
    per_pixel = known.get("decoder") == "broadcast-pixel"
    why = "a decoder of few parameters learns at a high rate" if per_pixel else "the usual rate of Adam"
    yield ChosenSetting("lr", 5e-3 if per_pixel else 1e-3, why)
    yield ChosenSetting("decay", "cosine", "the rate falls to 0, so that the end is settled")


def _choose_steps(dataset: FactorDataset, known: Mapping[str, Any], limit: int) -> ChosenSetting:
    rows, batch = _count_training_rows(dataset, known), known["batch"]
    wanted = math.ceil(EPOCHS * rows / batch)
    steps = min(limit, max(MIN_STEPS, 100 * math.ceil(wanted / 100)))
    reason = f"{steps * batch / rows:,.0f} passes over {rows:,} rows"
    seconds = estimate_seconds(dataset, known, steps)
    if seconds > SECONDS_ALLOWED:
        steps = max(1, int(steps * SECONDS_ALLOWED / seconds))
        minutes = f"{SECONDS_ALLOWED / 60:.0f} minutes on two cores"
        reason = f"{steps * batch / rows:,.1f} passes over {rows:,} rows, about {minutes}; set steps=… for more"
    return ChosenSetting("steps", steps, reason)


def _count_training_rows(dataset: FactorDataset, known: Mapping[str, Any]) -> int:
    return len(split(dataset, known.get("split", "default")).train)


def _settings_of(recipe: str, known: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in known.items() if key in objective[recipe].settings}
