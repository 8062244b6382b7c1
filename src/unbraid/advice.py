"""Advice on data: what they hold, a recipe and settings that fit them, the time on this machine, the next commands."""

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.find import Data, find_data
from unbraid.data.modality import Modality
from unbraid.data.tables import columns_of, explain_constant_columns
from unbraid.printable import shorten
from unbraid.progress import format_seconds
from unbraid.training import choose_device, configure
from unbraid.training.choose import ChosenSetting, choose_settings, is_own, is_silhouette
from unbraid.training.prepare import prepare

MAX_SECONDS_TO_MEASURE = 3.0
REPETITIONS, STEPS_PER_REPETITION = 6, 5
"""The fastest of a few short measurements is that with the least of other programs in it."""

ROWS_TO_DESCRIBE = 10_000
MAX_CHARACTERS = 200
MAX_ALIGNED = 60
"""Characters of a command up to which its comment is aligned with others."""

FEW_ROWS = 500
SEEDS = 5


@dataclass(frozen=True)
class Advice:
    """Facts about the data, a recipe with its reason, settings, the time that they take, and commands."""

    found: list[str]
    recipe: str
    reason: str
    settings: list[ChosenSetting]
    seconds: float
    steps: int
    device: str
    commands: dict[str, str]
    notes: list[str]

    def as_record(self) -> dict[str, Any]:
        """Return the advice as JSON holds it."""
        settings = {each.name: {"value": each.value, "reason": each.reason} for each in self.settings}
        record = {"found": self.found, "recipe": self.recipe, "reason": self.reason, "settings": settings}
        timing = {"seconds": round(self.seconds, 1), "steps": self.steps, "device": self.device}
        return {**record, **timing, "commands": self.commands, "notes": self.notes}

    def __str__(self) -> str:
        length = f"{self.steps:,} steps take about {format_seconds(self.seconds)} on this machine ({self.device})"
        width = max((len(command) for command in self.commands if len(command) <= MAX_ALIGNED), default=0)
        parts = {
            "Found": self.found,
            "Recipe": [f"{self.recipe}: {self.reason}"],
            "Settings": [str(each) for each in self.settings],
            "Time": [f"{length}, by the fastest of a few measured steps: more while other programs run."],
            "Notes": self.notes,
            "Next": [f"{command:{width}}  # {what}" for command, what in self.commands.items()],
        }
        return "\n".join("\n  ".join([title, *lines]) for title, lines in parts.items() if lines)


def advise(data: Data, device: str = "auto", data_settings: Mapping[str, Any] | None = None) -> Advice:
    """Look at data, measure a few steps of training, and return advice; no run is written.

    `data_settings` are those of the data set, such as `{"unreadable": "skip"}`.
    """
    named = {f"data.{key.removeprefix('data.')}": value for key, value in (data_settings or {}).items()}
    choice, dataset = find_data(data, dict(named), choose_device(device))
    recipe, reason = choose_recipe(dataset)
    settings = choose_settings(recipe, choice, dataset, {}, named=True)
    config = configure(recipe, choice, dataset, {each.name: each.value for each in settings})
    seconds = measure_step(config, dataset) * config.training.steps
    typed = [ChosenSetting(name, value, "you set it") for name, value in named.items()]
    given = str(data) if isinstance(data, str | Path) else "…"
    return Advice(
        found=describe_data(dataset),
        recipe=recipe,
        reason=reason,
        settings=settings,
        seconds=seconds,
        steps=config.training.steps,
        device=str(dataset.device),
        commands=_list_commands(recipe, given, [*typed, *([] if is_own(choice) else settings)]),
        notes=_list_notes(dataset),
    )


def choose_recipe(dataset: FactorDataset) -> tuple[str, str]:
    """Return a recipe for data, and the reason."""
    if dataset.multimodal:
        return "partitioned-mvae", "it learns what the modalities share and what each has alone, and fills empty cells"
    return "beta-tcvae", "it needs no labels, and its weight beta on the total correlation separates factors"


def describe_data(dataset: FactorDataset) -> list[str]:
    """Return lines about rows, shapes, ranges, missing cells and factors."""
    lines = [f"{len(dataset):,} rows"]
    lines += [_describe_modality(dataset, modality) for modality in dataset.modalities.values()]
    every = torch.arange(len(dataset), device=dataset.device)
    for column, factor in enumerate(dataset.factors):
        labelled = int(dataset.has_labels(every, [column]).sum())
        missing = f", unknown in {len(dataset) - labelled:,} rows" if labelled < len(dataset) else ""
        lines.append(f"factor {factor.name}: {factor.size} values{missing}")
    pictures = not dataset.multimodal and len(dataset.shape) == 3
    setting = "data.labels=labels.csv" if pictures else "data.factors=[COLUMN]"
    return lines if dataset.factors else [*lines, f"no factors: scores such as MIG need some ({setting})"]


def measure_step(config: Config, dataset: FactorDataset) -> float:
    """Return the seconds of one step of training on this machine when nothing else runs on it.

    The first step, which may compile, is left out, and the fastest of a few short repetitions counts: other programs
    make a step slower, never faster.
    """
    state = prepare(config, dataset)
    state.advance()
    _synchronise(dataset.device)
    fastest, end = math.inf, time.monotonic() + MAX_SECONDS_TO_MEASURE
    for _ in range(REPETITIONS):
        steps, started = 0, time.monotonic()
        enough = started + MAX_SECONDS_TO_MEASURE / REPETITIONS
        while steps == 0 or (steps < STEPS_PER_REPETITION and time.monotonic() < enough):
            state.advance()
            steps += 1
        _synchronise(dataset.device)
        fastest = min(fastest, (time.monotonic() - started) / steps)
        if time.monotonic() >= end:
            break
    return fastest


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe_modality(dataset: FactorDataset, modality: Modality) -> str:
    if columns := columns_of(dataset):
        words = [f"{each.name} ({len(each.classes)} classes)" if each.classes else each.name for each in columns]
        return f"{len(columns)} columns: {shorten(', '.join(words), MAX_CHARACTERS)}"
    name = modality.name if dataset.multimodal else "each"
    every = torch.arange(len(dataset), device=dataset.device)
    here = dataset.has(modality.name, every)
    missing = f", empty in {int((~here).sum()):,} rows" if not bool(here.all()) else ""
    if modality.kind == "label":
        return f"{name}: one of {len(modality.classes)} classes ({', '.join(modality.classes[:8])}){missing}"
    rows = modality.rows(every[here][:: max(1, int(here.sum()) // ROWS_TO_DESCRIBE)])
    span = f"from {float(rows.min()):.4g} to {float(rows.max()):.4g}"
    if modality.kind == "vector":
        return f"{name}: a vector of {modality.shape[0]:,} values {span}{missing}"
    channels, height, width = modality.shape
    colour = "grey" if channels == 1 else f"{channels} channels"
    shapes = ", almost all pixels black or white" if is_silhouette(modality, dataset.device) else ""
    return f"{name}: an image of {width}x{height} pixels, {colour}, values {span}{shapes}{missing}"


def _list_commands(recipe: str, data: str, settings: list[ChosenSetting]) -> dict[str, str]:
    """Return the commands to type next, and what each does."""
    words = shlex.join(each.words for each in settings)
    train = f"unbraid train {recipe} {shlex.quote(f'data={data}')}{f' {words}' if words else ''}"
    axis = "beta_c" if recipe == "partitioned-mvae" else "beta"
    fixed = shlex.join(each.words for each in settings if each.name not in ("patience", "split"))
    sweep = f"unbraid sweep {recipe} {shlex.quote(f'data={data}')} {axis}=1,4,16 seed=0:{SEEDS}"
    return {
        f"{train} --name mine": "train",
        "unbraid evaluate runs/mine": "scores",
        "unbraid report runs/mine": "a page with curves, traversals and reconstructions",
        "unbraid explore runs/mine": "a page that runs the model",
        f"{sweep}{f' {fixed}' if fixed else ''}": "which beta, and how much seeds differ",
    }


def _list_notes(dataset: FactorDataset) -> list[str]:
    notes = []
    if len(dataset) < FEW_ROWS:
        notes.append(f"{len(dataset):,} rows are few: expect latents that remember rows, and look at several seeds.")
    if note := explain_constant_columns(dataset):
        notes.append(note)
    partly = [f.name for i, f in enumerate(dataset.factors) if not _is_labelled(dataset, i)]
    if partly and not dataset.multimodal:
        notes.append(f"Some rows lack {', '.join(partly)}: s2-beta-vae learns from the labels that there are.")
    if dataset.factors and len(dataset.factors) > 1 and not dataset.multimodal:
        notes.append("If you can pair rows that differ in few factors, ada-gvae separates them more reliably.")
    return notes


def _is_labelled(dataset: FactorDataset, column: int) -> bool:
    return bool(dataset.has_labels(torch.arange(len(dataset), device=dataset.device), [column]).all())
