"""Series that follow from another one: a second stage upon each of its finished runs, or models as large as its own.

Stages are ordinary runs, named by a hash of their settings and of what they refine, so experiments share them too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unbraid.api import Run
from unbraid.config import combinations
from unbraid.errors import UsageError
from unbraid.experiments.base import AS_LARGE_AS, REFINES
from unbraid.latents import Space, latents_of
from unbraid.methods import objective
from unbraid.metrics.base import expand
from unbraid.models import build
from unbraid.networks.wide import parameters_of, wide_settings
from unbraid.refining import refine_together
from unbraid.report.tables import Member
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.results import member_of
from unbraid.sweeps.scoring import missing_scores, score
from unbraid.training.grouping import plan

Parents = Sequence[tuple[Member, RunFolder]]


@dataclass(frozen=True)
class Refined:
    """Stages upon runs, and of each the settings of the run that it refines beside what varies among stages."""

    folder: SweepFolder
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def members(self) -> list[Member]:
        """Every stage with its settings, state and newest scores."""
        return [member_of(self.folder, run, settings) for run, settings in self.settings.items()]


def refined(
    parents: Parents, asked: Mapping[str, Any], metrics: Sequence[str], root: Path, device: torch.device
) -> Refined:
    """Train and score what is not there yet: all stages of one structure as one program, whatever they refine.

    `asked` has the stage's recipe and settings; a list is an axis. A stage has the seed of the run that it refines.
    """
    folder, settings = SweepFolder(root / "refined"), {key: v for key, v in asked.items() if key != REFINES}
    kind = objective[settings.pop("recipe")].facts.stage or ""
    axes = {key: list(value) for key, value in settings.items() if isinstance(value, (list, range))}
    runs = _opened([run for member, run in parents if member.state == "finished"], device)
    told: dict[str, dict[str, Any]] = {}
    stages: list[Run] = []
    for chosen in combinations(axes) if runs else ():
        stages = refine_together(runs, kind, seeds=None, root=folder.path / "runs", **{**settings, **chosen})
        by_parent = {run.path.name: stage for run, stage in zip(runs, stages, strict=True)}
        for member, run in parents:
            if run.path.name in by_parent:
                told[by_parent[run.path.name].path.name] = {**member.settings, **chosen}
    _score([folder.run(name) for name in told], metrics, stages)
    return Refined(folder, told)


def _opened(folders: Sequence[RunFolder], device: torch.device) -> list[Run]:
    """Runs that share their data in memory."""
    first = [Run(folder, device=device) for folder in folders[:1]]
    return first + [Run(folder, dataset=first[0].dataset) for folder in folders[1:]]


def _score(folders: Sequence[RunFolder], metrics: Sequence[str], runs: Sequence[Run]) -> None:
    unscored = [each for each in folders if each.finished and missing_scores(each, expand(metrics))]
    by_id = {folder.config.run_id: folder for folder in unscored}
    for group in plan([folder.config for folder in unscored]):
        score([by_id[config.run_id] for config in group], runs[0].dataset, expand(metrics))


def sized(asked: Mapping[str, Any], like: Sequence[RunFolder], first: Sequence[RunFolder]) -> dict[str, Any]:
    """Settings of a series with networks as large as a run's model, in the place of its own; it may refine `first`."""
    found = next((run for run in like if run.finished), None)
    if found is None:
        raise UsageError(f"{asked[AS_LARGE_AS]} has no finished run, so that nothing can be made as large.")
    others = (AS_LARGE_AS, "network", "encoder", "decoder")
    settings = {key: value for key, value in asked.items() if key.partition(".")[0] not in others}
    shape = tuple(found.read_json("data")["shape"])
    own = Space.from_config(latents_of({**objective[settings["recipe"]].facts.defaults, **settings}))
    width, outputs = own.width, own.outputs
    if first:
        width += Space.from_config(first[0].config.latents).width
        outputs = {"code": width}
    return {**settings, **wide_settings(parameters_of(build(found.config, shape)), shape, outputs, width)}
