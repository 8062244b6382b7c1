"""From an experiment's name to its verdicts: train its runs, score them, test its claims and write a folder.

Runs belong to ordinary sweeps in ROOT/PAPER, which are named by their settings. Experiments that need the same runs
share them, and a finished run is never trained again.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from unbraid import atomic
from unbraid.data import keep_loaded
from unbraid.errors import UnbraidError, UsageError, unknown
from unbraid.experiments.base import (
    AS_LARGE_AS,
    REFINES,
    SCALES,
    SNAPSHOT_SHARE,
    Experiment,
    experiment,
    find_experiments,
)
from unbraid.experiments.claims import Verdict
from unbraid.experiments.derived_series import match_size, refine_series
from unbraid.experiments.judging import judge
from unbraid.experiments.longer_runs import (
    RECORD,
    LongerRuns,
    attach_longer_runs,
    read_longer_runs,
    refuse_fewer_runs,
    write_longer_runs,
)
from unbraid.experiments.measuring import choose_metrics
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.results import Results
from unbraid.experiments.series import Series
from unbraid.experiments.series_scoring import SeriesScoring
from unbraid.experiments.stand_in import choose_data, replace_in_stages
from unbraid.experiments.stored_runs import Source, find_stored, list_first_runs
from unbraid.experiments.writing import (
    Provenance,
    count_looks,
    refuse_fewer_seeds,
    refuse_replacing_whole,
    refuse_smaller_scale,
    write_results,
)
from unbraid.printable import format_setting
from unbraid.progress import name_slow_work
from unbraid.registry import Entry
from unbraid.report.tables import Member
from unbraid.scores_ahead import ScoresAhead
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep, sweep
from unbraid.training import Cadence, choose_device
from unbraid.training.interrupt import explain_how_to_continue


@dataclass(frozen=True)
class Reproduction:
    """The verdicts of an experiment, and where its results are."""

    name: str
    scale: str
    folder: Path
    verdicts: tuple[Verdict, ...]
    runs: int
    trained: int
    minutes: float
    notes: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """Return a plain mapping, for programs."""
        facts = {"experiment": self.name, "scale": self.scale, "folder": str(self.folder), "runs": self.runs}
        facts |= {"trained": self.trained, "minutes": self.minutes, "notes": list(self.notes)}
        return {**facts, "verdicts": [verdict.as_record() for verdict in self.verdicts]}


def reproduce(
    name: str,
    *,
    scale: str = "small",
    root: str | Path = "runs/reproduce",
    out: str | Path = "results",
    device: str = "auto",
    runs: str | Path | None = None,
    seeds: int | range | None = None,
    series: Sequence[str] = (),
    only: Mapping[str, Any] | None = None,
    twice: bool = False,
) -> list[Reproduction]:
    """Reproduce the experiments of a paper (`chen2018`) or one of them (`chen2018/fig2`).

    `scale` is `smoke` (seconds; shows that the program works), `small` (minutes on 2 cores), `budget` (at most 20
    minutes on one H200) or `paper` (the paper's own protocol). Runs stay below `root` and are reused. Table, figure and
    verdicts go to OUT/PAPER/ID. `runs` names an existing sweep or a folder of sweeps. A series that has runs in one of
    them takes all of these, with any seed, and is not trained; they need settings and scores, but no weights, unless
    a second stage on them is missing. `seeds` replaces the scale's seeds: more of them settle claims that the scale
    leaves open. `series` names the only ones to train, and `only` one or several values of settings that they sweep;
    claims about others then have no verdict. `twice` trains for twice the steps and judges nothing. Where its scores
    exist, claims whose estimates still move are judged by them.
    """
    names = find_experiments(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if twice and len(names) > 1:
        names = [each for each in names if experiment[each].facts.measure is None]
    # everything that could be refused is refused before anything is trained
    only = {key: _list_values(given) for key, given in (only or {}).items()}
    entries = {each: _choose_part(each, scale, seeds, series, only, twice) for each in names}
    longer = {each: read_longer_runs(Path(out) / each, experiment[each].facts, scale) for each in names}
    options = _describe_part(seeds, series, only) + (" --twice" if twice else "")
    for each in names:
        record = RECORD if twice else "verdicts.json"
        for present in dict.fromkeys((record, "verdicts.json")):
            refuse_smaller_scale(Path(out) / each, scale, present)
        if series or only or isinstance(seeds, range):
            refuse_replacing_whole(Path(out) / each, _describe_command(each, scale, options), record)
        if twice:
            refuse_fewer_runs(Path(out) / each, entries[each].facts, scale)
        elif runs is None and entries[each].facts.measure is None:
            refuse_fewer_seeds(Path(out) / each, entries[each].facts, scale)
    source = None if runs is None else Source.open(Path(runs))
    with explain_how_to_continue(Path(root)), keep_loaded():
        places = (Path(root), Path(out), device, source, twice)
        return [_reproduce_one(entries[each], scale, options, longer[each], *places) for each in names]


def _list_values(given: Any) -> list[Any]:
    """Return one or several values as a list."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _choose_part(
    name: str,
    scale: str,
    seeds: int | range | None,
    series: Sequence[str],
    only: Mapping[str, Sequence[Any]],
    twice: bool,
) -> Entry[Any, Experiment]:
    """Return an experiment with the seeds, series, values of settings and length that are asked for."""
    entry = experiment[name]
    facts = entry.facts.with_series(series) if series else entry.facts
    try:
        facts = facts.with_values(scale, only)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    if twice and only:
        raise UsageError("Runs of twice the steps have all settings of the whole runs: leave out --only.")
    if twice:
        if facts.measure is not None:
            raise UsageError(f"{name} trains nothing, so it has no runs of twice the steps.")
        facts = facts.with_twice_the_steps(scale)
    return replace(entry, facts=facts if seeds is None else facts.with_seeds(scale, seeds))


def _describe_part(seeds: int | range | None, series: Sequence[str], only: Mapping[str, Sequence[Any]]) -> str:
    """Return the options of the command line that choose seeds, series and values of settings."""
    chosen = f"{seeds.start}:{seeds.stop}" if isinstance(seeds, range) else seeds
    options = [] if seeds is None else [f"--seeds {chosen}"]
    options += [f"--series {quote(name)}" for name in series]
    values = {key: ",".join(str(format_setting(value)) for value in values) for key, values in only.items()}
    options += [f"--only {quote(f'{key}={text}')}" for key, text in values.items()]
    return "".join(f" {option}" for option in options)


def _describe_command(name: str, scale: str, options: str) -> str:
    return f"unbraid reproduce {name} --scale {scale}{options}"


def _reproduce_one(
    entry: Entry[Any, Experiment],
    scale: str,
    options: str,
    longer: LongerRuns | None,
    root: Path,
    out: Path,
    device: str,
    source: Source | None,
    twice: bool,
) -> Reproduction:
    name, facts, started = entry.name, entry.facts, time.time()
    paper = name.partition("/")[0]
    with _add_minutes(root / paper / "minutes.json", f"{name} {scale}{options}") as read_total:
        if facts.measure is not None:
            with name_slow_work(f"{name}: measuring"):
                results, runs, notes = Results(tuple(facts.measure(facts.get_scale(scale).settings)), scale), [], []
        else:
            results, runs, notes = _run_experiment(facts, scale, root / paper, device, source)
    command = _describe_command(name, scale, options)
    command += (f" --device {device}" if device != "auto" else "") + (f" --runs {source.path}" if source else "")
    provenance = Provenance(command, scale, read_total(), len(runs), choose_device(device))
    trained = sum(run.model_path.stat().st_mtime >= started for run in runs if run.model_path.exists())
    made = Reproduction(name, scale, out / name, (), len(runs), trained, provenance.minutes, tuple(notes))
    if twice:
        write_longer_runs(out / name, facts, results, provenance, notes)
        return made
    looks = count_looks(out / name, scale, len(runs), facts.claims)
    results = replace(results, looks=looks, ranges=facts.ranges)
    results, more_notes = attach_longer_runs(results, longer, notes)
    with name_slow_work(f"{name}: testing the claims"):
        verdicts = tuple(judge(claim, results) for claim in facts.claims)
    notes += more_notes
    with name_slow_work(f"{name}: drawing figures and writing results"):
        notes += write_results(out / name, entry, results, verdicts, provenance, [*facts.notes, *notes])
    return replace(made, verdicts=verdicts, notes=tuple(notes))


def _run_experiment(
    facts: Experiment, scale: str, root: Path, device: str, source: Source | None
) -> tuple[Results, list[RunFolder], list[str]]:
    """Train and score every series, or take its runs from `source`."""
    scoring = SeriesScoring(scale, choose_device(device))
    training = _Training(facts, scale, root, device, scores_later=scoring.overlaps)
    sweeps = facts.build_sweeps(scale)
    stored = find_stored(facts, scale, sweeps, source) if source else None
    with ScoresAhead(scoring.device) as ahead:
        for name, settings in sweeps.items():
            taken = stored.runs.get(name) if stored else None
            series, found = taken or training.run_series(name, settings)
            training.done[name] = series, found
            scoring.finish(ahead)  # of the series before
            scoring.begin(series, found, ahead, trained=taken is None)
        scoring.finish(ahead)
    members, runs = scoring.members, scoring.runs
    notes = [*training.notes, *scoring.notes]
    if stored:
        notes += stored.describe(sweeps)
    folders = {m.run: run for m, run in zip(members, runs, strict=True)}
    baselines = facts.baselines(sweeps) if facts.baselines is not None else []
    results = Results((*members, *baselines), scale, models=ModelCache(folders, scoring.device))
    return scoring.snapshots.attach(results, folders, scoring.device), runs, notes


@dataclass(frozen=True)
class _Training:
    """The training of an experiment's series, in order; a later series may refine or match an earlier one."""

    facts: Experiment
    scale: str
    root: Path
    device: str
    scores_later: bool = False
    """True if sweeps only train, because `SeriesScoring` measures their metrics beside the next training."""
    notes: list[str] = field(default_factory=list)
    done: dict[str, tuple[Series, list[Member]]] = field(default_factory=dict)

    @property
    def cadence(self) -> Cadence | None:
        """When runs keep a snapshot; never at `smoke`, which has no verdicts."""
        return Cadence(snapshot=SNAPSHOT_SHARE) if self.scale != "smoke" else None

    def run_series(self, name: str, settings: Mapping[str, Any]) -> tuple[Series, list[Member]]:
        """Train and score the runs of a series."""
        only, parents = self.facts.only.get(name, {}), []
        if REFINES in settings:
            parents = list_first_runs(self.done[settings[REFINES]], only)
        if AS_LARGE_AS in settings:
            series, members = self.done[settings[AS_LARGE_AS]]
            settings = match_size(settings, [series.folder(m) for m in members], [run for _, run in parents])
        if REFINES in settings:
            metrics = () if self.scores_later else self.facts.metrics
            settings = {**settings, **replace_in_stages(self.facts.find_data(name, self.scale))}
            stages = refine_series(parents, settings, metrics, self.root, self.device, self.notes, self.cadence)
            return Series(self.facts, self.scale, name, stages), stages.members
        series = Series(self.facts, self.scale, name, self._run_sweep(settings))
        return series, series.select({**settings, **only}, every_seed=False)

    def _run_sweep(self, settings: Mapping[str, Any]) -> Sweep:
        settings, notes = choose_data(settings)
        metrics = () if self.scores_later else choose_metrics(self.facts, ())
        recipe = settings.pop("recipe")
        runs = sweep(
            recipe, metrics=metrics, root=self.root, device=self.device, report=False, cadence=self.cadence, **settings
        )
        self.notes.extend(note for note in (*notes, *runs.notes) if note not in self.notes)
        return runs


@contextmanager
def _add_minutes(path: Path, key: str) -> Iterator[Any]:
    """Add the time spent inside to that of earlier, interrupted calls; yield a function that returns the sum."""
    earlier, start = float(_read_minutes(path).get(key, 0.0)), time.perf_counter()
    try:
        yield lambda: _read_minutes(path).get(key, 0.0)
    finally:
        spent = earlier + (time.perf_counter() - start) / 60
        atomic.write_text(path, json.dumps({**_read_minutes(path), key: round(spent, 3)}, indent=2) + "\n")


def _read_minutes(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise UnbraidError(
            f"{path} is not readable JSON: {error}. Delete it to start counting minutes again."
        ) from error
