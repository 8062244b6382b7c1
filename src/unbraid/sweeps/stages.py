"""Second stages: their recipe, settings and data, and the change of the first stage's codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unbraid.config import Choice, Config
from unbraid.data import dataset as datasets
from unbraid.data.factors import FactorDataset
from unbraid.data.find import find_data
from unbraid.errors import UsageError, unknown
from unbraid.methods import objective
from unbraid.metrics.base import Evaluation
from unbraid.run import Run
from unbraid.store import RunFolder
from unbraid.training import check_settings
from unbraid.training.configure import to_dotted
from unbraid.training.first_stage import load_first_stage_weights
from unbraid.types import NO_MODULES, Modules

MAX_COMPARED_ROWS = 1_000
"""Rows on which codes before and after refining are compared."""


@dataclass(frozen=True)
class FirstStage:
    """A finished run that another one refines: its folder, its description in configs, and its data."""

    folder: RunFolder
    description: Mapping[str, Any]
    dataset: FactorDataset

    @property
    def weights(self) -> dict[str, Any]:
        return load_first_stage_weights(self.folder.model_path)


def find_stage_recipe(kind: str) -> str:
    """Return the recipe of a kind of second stage, such as `ms-vae` for `vae`."""
    stages = {name: objective[name].facts.stage for name in objective}
    kinds = {stage: name for name, stage in stages.items() if stage is not None}
    if not isinstance(kind, str) or kind not in kinds:
        raise unknown("second stage", kind, kinds)
    return kinds[kind]


def choose_stage_settings(recipe: str, first: Config, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a stage: the overrides, and the split of the run that it refines."""
    settings = to_dotted(recipe, {"split": first.training.split, **overrides})
    check_settings(recipe, settings)
    allowed = datasets[first.data.name].facts.stages if first.data.name in datasets else ()
    if any(key.startswith("data.") and key.removeprefix("data.") not in allowed for key in settings):
        exceptions = f", except {' and '.join(f'data.{key}' for key in allowed)}" if allowed else ""
        raise UsageError(f"A stage uses the data of the run that it refines; leave data.… out{exceptions}.")
    return settings


def find_stage_data(first: Choice, dataset: FactorDataset, settings: dict[str, Any]) -> tuple[Choice, FactorDataset]:
    """Return the data of a stage: those of its first stage, with the `data.…` settings (removed) that may differ."""
    changed = {key: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    if not changed:
        return first, dataset
    same = {f"data.{key}": value for key, value in first.settings.items()}
    choice, found = find_data(first.name, {**same, **changed}, dataset.device)
    if (found.shape, found.factors, len(found)) != (dataset.shape, dataset.factors, len(dataset)):
        raise UsageError(f"With {' '.join(changed)} the rows differ from those of the run that is refined.")
    return choice, found


def record_code_change(
    first: FirstStage, folder: RunFolder, dataset: FactorDataset, modules: Modules = NO_MODULES
) -> None:
    """Write the largest change of the first stage's codes to parent.json, once; only a student changes them.

    Both models encode in full precision, whatever they trained in: the rounding of TF32 would look like a change.
    """
    if "max_change" in folder.read_json("parent"):
        return
    run = Run(first.folder, dataset=first.dataset)
    all_rows = run.evaluation
    rows = (all_rows.subsample(MAX_COMPARED_ROWS) if len(all_rows) > MAX_COMPARED_ROWS else all_rows).rows
    refined = Run(folder, dataset=dataset, **modules._asdict()).model
    before, after = (Evaluation(model, first.dataset, rows, precision="f32").means for model in (run.model, refined))
    change = float((before - after[:, : before.shape[1]]).abs().max())
    with folder.locked():  # which removes what a killed process left of this file
        folder.write_json("parent", {"path": str(first.folder.path), "rows": len(rows), "max_change": change})
