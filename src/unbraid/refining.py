"""Refining a finished run by a second stage (msvae2020)."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from unbraid.api import Data, Run, find_data, fitted, load
from unbraid.config import Choice, Config
from unbraid.data import dataset as datasets
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError, unknown
from unbraid.methods import objective
from unbraid.metrics.base import Evaluation
from unbraid.store import RunFolder
from unbraid.training import Cadence, configure, refuse_unknown, train_group
from unbraid.training.configure import dotted
from unbraid.training.distributed import launched
from unbraid.training.first_stage import bring, parent_of, refuse_other_data
from unbraid.training.grouping import at_most, fitting, plan


def refine(
    run: Run | str | Path,
    kind: str = "vae",
    *,
    data: Data | None = None,
    encoder: str | nn.Module | None = None,
    decoder: str | nn.Module | None = None,
    device: str = "auto",
    root: str | Path = "runs",
    name: str | None = None,
    resume: bool = True,
    fresh: bool = False,
    cadence: Cadence | None = None,
    **overrides: Any,
) -> Run:
    """Sharpen a finished run by a second stage, a run of its own, that leaves untouched what the first one learned.

    `kind` is what the stage is made of (`vae`, `flow`, `labels`, `gan`, `cgan`, `code`, `student`); every other keyword
    is a setting of its recipe, as in `train`. The data are those of the run, and so is the split unless `split` says
    otherwise (stages of a `pendulum` may see another one of its kinds: `data_observed`); `data` has to be given only
    where the run's were passed in, and `device` only counts where `run` is a path. `unchanged` of the run that is
    returned says how far the codes of the first stage have moved: not at all, unless a `student` learns them anew.
    """
    recipe = stage_recipe(kind)
    first = run if isinstance(run, Run) else load(run, device=device)
    parent = parent_of(first.folder)
    if fresh and name is not None and (Path(root) / name).resolve() == first.path.resolve():
        raise UsageError(f"A fresh run named {name} would throw away {first.path}, which is to be refined.")
    if data is not None:
        dataset = find_data(data, {}, first.device)[1]
        refuse_other_data(first.folder, dataset)
        first = Run(first.folder, dataset=dataset)
    given = {key: side for key, side in (("encoder", encoder), ("decoder", decoder)) if side is not None}
    settings = _settings(recipe, first, {**overrides, **given})
    choice, dataset = _seen(first, settings)
    _ = first.evaluation  # the finished stage is compared with it, and what it lacks is to be told before training
    made = fitted(recipe, choice, dataset, settings, Path(root), name, resume, cadence, (first.folder, parent), fresh)
    if launched().rank == 0:
        _check(first, made)
    return made


def refine_together(
    runs: Sequence[Run],
    kind: str = "vae",
    *,
    seeds: Sequence[int] | None = (0,),
    root: str | Path = "runs",
    members: int | None = None,
    cadence: Cadence | None = None,
    **overrides: Any,
) -> list[Run]:
    """Refine each of several runs of the same data under each of several seeds, those of one structure as one program.

    Without `seeds` each has that of the run which it refines. Runs may have different parents in one program: a first
    stage's weights are numbers, as the seed is. At most `members` of them train at once (default: as many as fit).
    Returns the runs in order, the seed changing fastest; finished ones are kept, and stopped ones continued. A run that
    diverged has no model; its status says where it did, and it is not tried again.
    """
    recipe, wanted = stage_recipe(kind), list[tuple[Run, Config]]()
    choice, dataset = _seen(runs[0], _settings(recipe, runs[0], overrides))
    for run in runs:
        refuse_other_data(run.folder, runs[0].dataset)
        parent, settings = parent_of(run.folder), _settings(recipe, run, overrides)
        settings = {key: value for key, value in settings.items() if not key.startswith("data.")}
        own = [run.config.training.seed] if seeds is None else seeds
        configs = [configure(recipe, choice, dataset, {**settings, "seed": s}, parent=parent) for s in own]
        wanted += [(run, config) for config in configs]
    folders = {config.run_id: RunFolder.create(Path(root) / config.run_id, config) for _, config in wanted}
    for run, config in wanted:
        bring(run.folder, folders[config.run_id])
    waiting = [config for _, config in wanted if not _ended(folders[config.run_id])]
    for group in [part for whole in plan(waiting) for part in at_most([whole], members or fitting(whole, dataset))]:
        names = [config.run_id for config in group]
        place = Path(root) / f"group-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]}"
        train_group(RunFolder(place), [folders[name] for name in names], group, dataset, cadence)
        shutil.rmtree(place)
    made = [(run, Run(folders[config.run_id], dataset=dataset)) for run, config in wanted]
    for run, new in made:
        if new.folder.finished:
            _check(run, new)
    return [new for _, new in made]


def _ended(folder: RunFolder) -> bool:
    return folder.finished or folder.read_json("status").get("state") == "diverged"


def _settings(recipe: str, first: Run, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a stage: those that were given, and the split of the run that it refines."""
    settings = dotted(recipe, {"split": first.config.training.split, **overrides})
    refuse_unknown(recipe, settings)
    own = datasets[first.config.data.name].facts.stages if first.config.data.name in datasets else ()
    if any(key.startswith("data.") and key.removeprefix("data.") not in own for key in settings):
        may = f" all but {' and '.join(f'data.{key}' for key in own)}" if own else ""
        raise UsageError(f"A stage learns from the data of the run that it refines; leave data.… out{may}.")
    return settings


def _seen(first: Run, settings: dict[str, Any]) -> tuple[Choice, FactorDataset]:
    """The data of a stage: those of the run that it refines, seen as `data.…`, taken out of the settings, says."""
    chosen = first.config.data
    changed = {key: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    if not changed:
        return chosen, first.dataset
    same = {f"data.{key}": value for key, value in chosen.settings.items()}
    choice, dataset = find_data(chosen.name, {**same, **changed}, first.device)
    before = first.dataset
    if (dataset.shape, dataset.factors, len(dataset)) != (before.shape, before.factors, len(before)):
        raise UsageError(f"With {' '.join(changed)} these are other rows than those of the run that is refined.")
    return choice, dataset


def stage_recipe(kind: str) -> str:
    """The recipe of a kind of second stage."""
    stages = {name: objective[name].facts.stage for name in objective}
    kinds = {stage: name for name, stage in stages.items() if stage is not None}
    if kind not in kinds:
        raise unknown("second stage", kind, kinds)
    return kinds[kind]


def _check(first: Run, second: Run, rows: int = 1_000) -> None:
    """Write down, once, how far codes of the first stage lie from those of the run that it was, on rows of scores."""
    if second.unchanged:
        return
    seen = first.evaluation.some(rows) if len(first.evaluation) > rows else first.evaluation
    after = Evaluation(second.model, seen.dataset, seen.rows).means[:, : seen.means.shape[1]]
    change = float((seen.means - after).abs().max())
    second.folder.write_json("parent", {"path": str(first.path), "rows": len(seen), "max_change": change})
