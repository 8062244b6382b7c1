"""Series that follow from another one: a second stage on each of its finished runs, or models of the same size.

Stages are ordinary runs, named by a hash of their settings and of the run they refine, so experiments share them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbraid.errors import UsageError
from unbraid.experiments.base import AS_LARGE_AS, REFINES
from unbraid.latents import Space, parse_latents
from unbraid.methods import objective
from unbraid.models import build
from unbraid.networks.base import count_parameters
from unbraid.networks.wide import wide_settings
from unbraid.report.tables import Member
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.results import read_member
from unbraid.sweeps.run import sweep
from unbraid.training import Cadence

Parents = Sequence[tuple[Member, RunFolder]]


@dataclass(frozen=True)
class RefinedSeries:
    """Stages, and the settings of each: those of the run that it refines, and its own axes."""

    folder: SweepFolder
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def members(self) -> list[Member]:
        return [read_member(self.folder, run, settings) for run, settings in self.settings.items()]


def refine_series(
    parents: Parents,
    settings: Mapping[str, Any],
    metrics: Sequence[str],
    root: Path,
    device: str,
    notes: list[str],
    cadence: Cadence | None = None,
) -> RefinedSeries:
    """Train and score a second stage on each finished parent, as one sweep.

    `settings` holds the stage's recipe and settings; a list is an axis. A stage has the seed of the run it refines.
    """
    stage = {key: value for key, value in settings.items() if key != REFINES}
    finished = {str(folder.path): member for member, folder in parents if member.state == "finished"}
    if not finished:
        return RefinedSeries(SweepFolder(root), {})
    recipe = stage.pop("recipe")
    how: dict[str, Any] = {"root": root, "device": device, "report": False, "cadence": cadence}
    stages = sweep(recipe, refines=list(finished), metrics=metrics, **how, **stage)
    notes += [note for note in stages.notes if note not in notes]
    axes = [key for key, value in stage.items() if isinstance(value, (list, range))]
    by_run = {
        run: {**finished[member["refines"]].settings, **{key: member[key] for key in axes}}
        for run, member in stages.folder.members.items()
        if member["refines"] in finished
    }
    return RefinedSeries(stages.folder, by_run)


def match_size(series: Mapping[str, Any], like: Sequence[RunFolder], first: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the settings of a series with networks that make it as large as the first finished run of `like`.

    `first` holds the runs that the series refines, if any.
    """
    run = next((run for run in like if run.status["state"] == "finished"), None)
    if run is None:
        raise UsageError(f"{series[AS_LARGE_AS]} has no finished run, so no model can be made as large as its models.")
    replaced = (AS_LARGE_AS, "network", "encoder", "decoder")
    settings = {key: value for key, value in series.items() if key.partition(".")[0] not in replaced}
    shape = tuple(run.read_json("data")["shape"])
    space = Space.from_config(parse_latents({**objective[settings["recipe"]].facts.defaults, **settings}))
    width, outputs = space.width, space.outputs
    if first:
        width += Space.from_config(first[0].config.latents).width
        outputs = {"code": width}
    return {**settings, **wide_settings(count_parameters(build(run.config, shape)), shape, outputs, width)}
