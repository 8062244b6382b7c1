"""Series that follow from another one: a second stage upon each of its finished runs, or models as large as its own.

Stages are ordinary runs, named by a hash of their settings and of what they refine, so experiments share them too.
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

Parents = Sequence[tuple[Member, RunFolder]]


@dataclass(frozen=True)
class RefinedSeries:
    """Stages upon runs, and of each the settings of the run that it refines beside what varies among stages."""

    folder: SweepFolder
    settings: Mapping[str, Mapping[str, Any]]

    @property
    def members(self) -> list[Member]:
        """Every stage with its settings, state and newest scores."""
        return [read_member(self.folder, run, settings) for run, settings in self.settings.items()]


def refine_series(
    parents: Parents, settings: Mapping[str, Any], metrics: Sequence[str], root: Path, device: str, notes: list[str]
) -> RefinedSeries:
    """Train and score a second stage upon each finished parent, as a sweep over what it refines.

    `settings` holds the stage's recipe and settings; a list is an axis. A stage has the seed of the run it refines.
    """
    asked = {key: value for key, value in settings.items() if key != REFINES}
    finished = {str(folder.path): member for member, folder in parents if member.state == "finished"}
    if not finished:
        return RefinedSeries(SweepFolder(root), {})
    recipe = asked.pop("recipe")
    made = sweep(recipe, refines=list(finished), metrics=metrics, root=root, device=device, report=False, **asked)
    notes += [note for note in made.notes if note not in notes]
    axes = [key for key, value in asked.items() if isinstance(value, (list, range))]
    told: dict[str, dict[str, Any]] = {}
    for run, own in made.folder.members.items():
        if own["refines"] in finished:
            told[run] = {**finished[own["refines"]].settings, **{key: own[key] for key in axes}}
    return RefinedSeries(made.folder, told)


def match_size(asked: Mapping[str, Any], like: Sequence[RunFolder], first: Sequence[RunFolder]) -> dict[str, Any]:
    """Settings of a series with networks as large as a run's model, in the place of its own; it may refine `first`."""
    found = next((run for run in like if run.finished), None)
    if found is None:
        raise UsageError(f"{asked[AS_LARGE_AS]} has no finished run, so that nothing can be made as large.")
    others = (AS_LARGE_AS, "network", "encoder", "decoder")
    settings = {key: value for key, value in asked.items() if key.partition(".")[0] not in others}
    shape = tuple(found.read_json("data")["shape"])
    own = Space.from_config(parse_latents({**objective[settings["recipe"]].facts.defaults, **settings}))
    width, outputs = own.width, own.outputs
    if first:
        width += Space.from_config(first[0].config.latents).width
        outputs = {"code": width}
    return {**settings, **wide_settings(count_parameters(build(found.config, shape)), shape, outputs, width)}
