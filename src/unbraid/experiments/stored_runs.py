"""Runs that were trained elsewhere, for `reproduce --runs FOLDER`: which series can be taken from there.

A stored run needs settings and scores, but no weights. A second stage is stored if it refines a stored run. One that is
missing has to be trained, and for that the runs that it refines need their weights: without them, they are trained
anew, too, and nothing of theirs is taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbraid.errors import UsageError
from unbraid.experiments.base import AS_LARGE_AS, REFINES, Experiment
from unbraid.experiments.derived_series import RefinedSeries, match_size
from unbraid.experiments.run_matching import list_choices_of_data, list_values, matches_settings
from unbraid.experiments.series import Series
from unbraid.experiments.stand_in import StandIn
from unbraid.report.tables import Member
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep

Sweeps = Mapping[str, Mapping[str, Any]]
Runs = tuple[Series, list[Member]]


@dataclass(frozen=True)
class Source:
    """Sweeps whose runs are used instead of training new ones."""

    path: Path
    sweeps: tuple[Sweep, ...]

    @classmethod
    def open(cls, path: Path) -> "Source":
        """Open the sweep in a folder, or all sweeps below it."""
        below = [] if (path / "sweep.yaml").exists() else sorted(each.parent for each in path.glob("*/sweep.yaml"))
        return cls(path, tuple(Sweep(each) for each in below or [path]))


@dataclass
class StoredRuns:
    """Runs by series, and for each series that has runs without weights those that need them."""

    source: Source
    runs: dict[str, Runs]
    trained_anew: dict[str, str] = field(default_factory=dict)

    def describe(self, sweeps: Sweeps) -> list[str]:
        """Return sentences on the stand-ins among the runs, and on what was taken and what was trained."""
        notes = _name_stand_ins(self.runs, sweeps)
        path, taken = self.source.path, ", ".join(self.runs)
        if self.trained_anew:
            firsts, stages = (_quote(names) for names in (self.trained_anew, self.trained_anew.values()))
            notes.append(
                f"{path} holds no weights of {firsts}, and no runs of {stages}, which need them: these first stages "
                "and all that refines them were trained anew."
            )
        trained = [name for name in sweeps if name not in self.runs]
        if not self.runs:
            return notes
        if not trained:
            return [*notes, f"Runs were taken from {path}, with all of their seeds."]
        others = ", ".join(trained)
        return [
            *notes,
            f"Runs of {taken} were taken from {path}, with all of their seeds; those of {others} were trained.",
        ]


def find_stored(facts: Experiment, scale: str, sweeps: Sweeps, source: Source) -> StoredRuns:
    """Return the runs that can be taken from `source`, or raise if no first series has any there.

    Series that are as large as others, and refine none, have none.
    """
    stored = StoredRuns(source, _find_firsts(facts, scale, sweeps, source))
    for name, settings in sweeps.items():
        if settings.get(REFINES) in stored.runs:
            found = _find_stages(facts, scale, name, settings, stored)
            stored.runs |= {} if found is None else {name: found}
    while (lacking := _find_without_weights(facts, sweeps, stored.runs)) is not None:
        first, needing = lacking
        stored.trained_anew[first] = needing
        _leave_out(first, sweeps, stored.runs)
    return stored


def list_first_runs(runs: Runs, only: Mapping[str, Any]) -> list[tuple[Member, RunFolder]]:
    """Return the runs of a series that another one refines: those with the settings in `only`."""
    series, members = runs
    fitting = [m for m in members if all(m.settings.get(k) in list_values(v) for k, v in only.items())]
    return [(member, series.folder(member)) for member in fitting]


def _find_firsts(facts: Experiment, scale: str, sweeps: Sweeps, source: Source) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    names = [name for name, settings in sweeps.items() if not {REFINES, AS_LARGE_AS} & settings.keys()]
    for name in names:
        candidates = [Series(facts, scale, name, each) for each in source.sweeps]
        for wanted in list_choices_of_data({**sweeps[name], **facts.only.get(name, {})}):
            matching = [each for each in candidates if each.select(wanted, every_seed=True)]
            if matching and name not in found:
                every = {**sweeps[name], **facts.only.get(name, {})}
                found[name] = matching[0], matching[0].select(every, every_seed=True)
    if not found:
        raise UsageError(f"{source.path} has no run of {' or '.join(names)} with the settings of scale {scale}.")
    return found


def _find_stages(
    facts: Experiment, scale: str, name: str, settings: Mapping[str, Any], stored: StoredRuns
) -> Runs | None:
    """Return the second stages with these settings that refine stored runs, from the first sweep that has some."""
    firsts = list_first_runs(stored.runs[settings[REFINES]], facts.only.get(name, {}))
    if AS_LARGE_AS in settings:
        if settings[AS_LARGE_AS] not in stored.runs:
            return None
        series, members = stored.runs[settings[AS_LARGE_AS]]
        settings = match_size(settings, [series.folder(m) for m in members], [folder for _, folder in firsts])
    wanted = {key: value for key, value in settings.items() if key != REFINES}
    data = facts.find_data(name, scale)
    choices = [wanted, {**wanted, **data.of_stages}] if isinstance(data, StandIn) else [wanted]
    axes = [key for key, value in wanted.items() if isinstance(value, (list, range))]
    by_content = {folder.read_json("status").get("content"): member for member, folder in firsts}
    for sweep in stored.source.sweeps:
        found = {}
        for run, own in sweep.folder.members.items():
            config = sweep.folder.run_folder(run).config
            first = by_content.get(config.parent["content"]) if config.parent is not None else None
            if first is not None and any(matches_settings(config, choice) for choice in choices):
                found[run] = {**first.settings, **{key: own[key] for key in axes if key in own}}
        if found:
            series = Series(facts, scale, name, RefinedSeries(sweep.folder, found))
            return series, series.source.members
    return None


def _find_without_weights(facts: Experiment, sweeps: Sweeps, runs: Mapping[str, Runs]) -> tuple[str, str] | None:
    """Return a stored series whose runs lack the weights that a series to be trained needs, and that series."""
    for name, settings in sweeps.items():
        first = settings.get(REFINES)
        if name in runs or first not in runs:
            continue
        needed = list_first_runs(runs[first], facts.only.get(name, {}))
        if any(member.state == "finished" and not folder.finished for member, folder in needed):
            return first, name
    return None


def _leave_out(name: str, sweeps: Sweeps, runs: dict[str, Runs]) -> None:
    """Remove a series, and the stages that refine its runs: they would stand on other weights."""
    runs.pop(name, None)
    for other, settings in sweeps.items():
        if settings.get(REFINES) == name:
            _leave_out(other, sweeps, runs)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))


def _name_stand_ins(stored: Mapping[str, Runs], sweeps: Sweeps) -> list[str]:
    """Return a note for each data set whose stand-in was used by runs that were trained elsewhere."""
    notes = []
    for name, (series, _) in stored.items():
        data = sweeps[name].get("data")
        if isinstance(data, StandIn) and not series.select({**sweeps[name], "data": data.wanted}, every_seed=True):
            notes.append(f"{data.instead} stand in for {data.wanted}, of which there are no runs.")
    return list(dict.fromkeys(notes))
