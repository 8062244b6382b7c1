"""From an experiment's name to its verdicts: train its runs, score them, test its claims and write a folder.

Runs belong to ordinary sweeps in ROOT/PAPER, which are named by their settings. Experiments that need the same runs
share them, and a finished run is never trained again.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbraid import atomic
from unbraid.data import describe
from unbraid.errors import UnbraidError, UsageError, unknown
from unbraid.experiments.base import (
    AS_LARGE_AS,
    REFINES,
    SCALES,
    Experiment,
    Results,
    StandIn,
    Verdict,
    experiment,
    find_experiments,
    judge,
)
from unbraid.experiments.derived_series import RefinedSeries, match_size, refine_series
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.run_matching import list_values, matches_settings
from unbraid.experiments.writing import Provenance, refuse_smaller_scale, write_results
from unbraid.metrics import Score, metric
from unbraid.metrics.base import expand
from unbraid.report.tables import Member
from unbraid.run import Run, score_runs
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep, sweep
from unbraid.training import choose_device
from unbraid.training.interrupt import explain_how_to_continue

MAX_DRIFT = 0.02
"""Largest relative change of a settled run's mean loss from the fourth to the last fifth of training."""


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
) -> list[Reproduction]:
    """Reproduce the experiments of a paper (`chen2018`) or one of them (`chen2018/fig2`).

    `scale` is `smoke` (seconds; shows that the program works), `small` (minutes on 2 cores), `budget` (at most 20
    minutes on one H200) or `paper` (the paper's own protocol). Runs stay below `root` and are reused. Table, figure and
    verdicts go to OUT/PAPER/ID. `runs` names an existing sweep or a folder of sweeps. A series that has runs in one of
    them takes all of these, with any seed, and is not trained; they need settings and scores, but no weights.
    """
    names = find_experiments(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    for each in names:  # before anything is trained
        experiment[each].facts.get_scale(scale)
        refuse_smaller_scale(Path(out) / each, scale)
    source = None if runs is None else _Source.open(Path(runs))
    with explain_how_to_continue(Path(root)):
        return [_reproduce_one(each, scale, Path(root), Path(out), device, source) for each in names]


@dataclass(frozen=True)
class _Source:
    """Sweeps whose runs are used instead of training new ones."""

    path: Path
    sweeps: tuple[Sweep, ...]

    @classmethod
    def open(cls, path: Path) -> "_Source":
        """Open the sweep in a folder, or all sweeps below it."""
        below = [] if (path / "sweep.yaml").exists() else sorted(each.parent for each in path.glob("*/sweep.yaml"))
        return cls(path, tuple(Sweep(each) for each in below or [path]))


def _reproduce_one(name: str, scale: str, root: Path, out: Path, device: str, source: _Source | None) -> Reproduction:
    facts, started = experiment[name].facts, time.time()
    paper = name.partition("/")[0]
    with _add_minutes(root / paper / "minutes.json", f"{name} {scale}") as read_total:
        if facts.measure is not None:
            results, runs, notes = Results(tuple(facts.measure(facts.get_scale(scale).settings)), scale), [], []
        else:
            results, runs, notes = _run_experiment(facts, scale, root / paper, device, source)
    verdicts = tuple(judge(claim, results) for claim in facts.claims)
    trained = sum(run.model_path.stat().st_mtime >= started for run in runs if run.model_path.exists())
    command = f"unbraid reproduce {name} --scale {scale}" + (f" --device {device}" if device != "auto" else "")
    command += f" --runs {source.path}" if source else ""
    provenance = Provenance(command, scale, read_total(), len(runs), choose_device(device))
    notes += write_results(out / name, experiment[name], results, verdicts, provenance, [*facts.notes, *notes])
    return Reproduction(name, scale, out / name, verdicts, len(runs), trained, provenance.minutes, tuple(notes))


def _run_experiment(
    facts: Experiment, scale: str, root: Path, device: str, source: _Source | None
) -> tuple[Results, list[RunFolder], list[str]]:
    """Train and score every series, or take its runs from `source`."""
    training = _Training(facts, scale, root, device)
    sweeps = facts.build_sweeps(scale)
    stored = _find_stored(facts, scale, sweeps, source) if source else {}
    members: list[Member] = []
    runs: list[RunFolder] = []
    unsettled: set[str] = set()
    for name, settings in sweeps.items():
        if name in stored:
            series = stored[name]
            found = series.select({**settings, **facts.only.get(name, {})}, every_seed=True)
        else:
            series, found = training.run_series(name, settings)
        training.done[name] = series, found
        members += series.score(found, training.device_used)
        unsettled |= {f"{name}/{member.run}" for member in found if not series.has_settled(member)}
        runs += [series.folder(member) for member in found]
    notes = training.notes
    if source:
        notes.append(_describe_origin(source, list(stored), [name for name in sweeps if name not in stored]))
    models = ModelCache({m.run: run for m, run in zip(members, runs, strict=True)}, training.device_used)
    if facts.baselines is not None:
        members += facts.baselines(sweeps)
    return Results(tuple(members), scale, frozenset(unsettled), models), runs, notes


@dataclass(frozen=True)
class _Training:
    """The training of an experiment's series, in order; a later series may refine or match an earlier one."""

    facts: Experiment
    scale: str
    root: Path
    device: str
    notes: list[str] = field(default_factory=list)
    done: dict[str, tuple["_Series", list[Member]]] = field(default_factory=dict)

    @property
    def device_used(self) -> torch.device:
        return choose_device(self.device)

    def run_series(self, name: str, settings: Mapping[str, Any]) -> tuple["_Series", list[Member]]:
        """Train and score the runs of a series."""
        only, parents = self.facts.only.get(name, {}), []
        if REFINES in settings:
            series, members = self.done[settings[REFINES]]
            fitting = [m for m in members if all(m.settings.get(k) in list_values(v) for k, v in only.items())]
            parents = [(member, series.folder(member)) for member in fitting]
        if AS_LARGE_AS in settings:
            series, members = self.done[settings[AS_LARGE_AS]]
            settings = match_size(settings, [series.folder(m) for m in members], [run for _, run in parents])
        if REFINES in settings:
            stages = refine_series(parents, settings, self.facts.metrics, self.root, self.device, self.notes)
            return _Series(self.facts, self.scale, name, stages), stages.members
        series = _Series(self.facts, self.scale, name, self._run_sweep(settings))
        return series, series.select({**settings, **only}, every_seed=False)

    def _run_sweep(self, settings: Mapping[str, Any]) -> Sweep:
        settings, notes = _choose_data(settings)
        metrics = [each for each in expand(self.facts.metrics) if "staged" not in metric[each].facts.needs]
        recipe = settings.pop("recipe")
        runs = sweep(recipe, metrics=metrics, root=self.root, device=self.device, report=False, **settings)
        self.notes.extend(note for note in (*notes, *runs.notes) if note not in self.notes)
        return runs


def _find_stored(
    facts: Experiment, scale: str, sweeps: Mapping[str, Mapping[str, Any]], source: _Source
) -> dict[str, "_Series"]:
    """Return the series that have runs in `source`, or raise if none has. Series that follow from others have none."""
    found: dict[str, _Series] = {}
    names = [name for name, settings in sweeps.items() if not {REFINES, AS_LARGE_AS} & settings.keys()]
    for name in names:
        wanted = {**sweeps[name], **facts.only.get(name, {})}
        candidates = [_Series(facts, scale, name, each) for each in source.sweeps]
        matching = [each for each in candidates if each.select(wanted, every_seed=True)]
        found |= {name: matching[0]} if matching else {}
    if not found:
        raise UsageError(f"{source.path} has no run of {' or '.join(names)} with the settings of scale {scale}.")
    return found


def _describe_origin(source: _Source, stored: Sequence[str], trained: Sequence[str]) -> str:
    if not trained:
        return f"Runs were taken from {source.path}, with all of their seeds."
    names, others = ", ".join(stored), ", ".join(trained)
    return f"Runs of {names} were taken from {source.path}, with all of their seeds; those of {others} were trained."


@dataclass(frozen=True)
class _Series:
    """The runs of one series, in a sweep that may hold others."""

    facts: Experiment
    scale: str
    name: str
    source: Sweep | RefinedSeries

    def folder(self, member: Member) -> RunFolder:
        return self.source.folder.run_folder(member.run)

    def select(self, settings: Mapping[str, Any], every_seed: bool) -> list[Member]:
        """Return the members with these settings; a sweep that was extended or shared holds others, too."""
        wanted = {key: value for key, value in settings.items() if not (every_seed and key == "seed")}
        return [member for member in self.source.members if matches_settings(self.folder(member).config, wanted)]

    def score(self, members: Sequence[Member], device: torch.device) -> list[Member]:
        """Return the members with all scores, named after their series, with the axes as their only settings."""
        measures, axes = self.facts.get_scale(self.scale).measures, self.facts.list_axes(self.scale)
        extra = _measure_all([self.folder(m) for m in members if m.state == "finished"], measures, device)
        scored = []
        for member in members:
            scores = {**member.scores, **extra.get(member.run, {})}
            scores |= _derive_scores(self.facts, scores)
            settings = {"recipe": self.name, **{key: member.settings[key] for key in axes if key in member.settings}}
            scored.append(Member(f"{self.name}/{member.run}", settings, member.state, member.trouble, scores))
        return scored

    def has_settled(self, member: Member) -> bool:
        """Return True also for a run that did not finish, which has no scores that could mislead."""
        steps = self.facts.build_sweeps("paper")[self.name].get("steps") if "paper" in self.facts.scales else None
        return member.state != "finished" or has_settled(self.folder(member), steps)


def _choose_data(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings with a data set whose files exist, and a note if it replaces another one."""
    data = settings.get("data")
    if not isinstance(data, StandIn):
        return dict(settings), []
    present = any(item.name == data.wanted and item.state != "missing" for item in describe())
    notes = [] if present else [f"{data.instead} stand in for {data.wanted}, whose files are not here."]
    return {**settings, "data": data.wanted if present else data.instead}, notes


def _derive_scores(facts: Experiment, scores: Mapping[str, Score]) -> dict[str, Score]:
    derived = {}
    for name, derive in facts.derived.items():
        try:
            derived[name] = derive(scores)
        except KeyError:  # a run that diverged, or whose data do not allow the score
            continue
    return derived


def has_settled(run: RunFolder, paper_steps: int | None) -> bool:
    """Return True if a run trained for as long as the paper's, or if its loss hardly changed at the end."""
    if paper_steps is not None and run.config.training.steps >= paper_steps:
        return True
    losses = [line["loss"] for line in run.read_lines("history") if "loss" in line]
    fifth = len(losses) // 5
    if fifth < 1:
        return False
    before, last = np.mean(losses[-2 * fifth : -fifth]), np.mean(losses[-fifth:])
    return bool(abs(last - before) <= MAX_DRIFT * abs(last))


def _measure_all(
    runs: Sequence[RunFolder], measures: Mapping[str, tuple[str, Mapping[str, Any]]], device: torch.device
) -> dict[str, dict[str, Score]]:
    """Return scores with settings of their own, by run: read those that are stored and measure the others."""
    pairs = [(_strip_part(name), settings) for name, settings in measures.values()]
    unique = [pair for place, pair in enumerate(pairs) if pair not in pairs[:place]]  # one metric may have many parts
    opened = {folder.path.name: Run(folder, device=device) for folder in (runs if measures else ())}
    for name, settings in unique:
        missing = [run for run in opened.values() if _find_score(run.scores, name, settings) is None]
        for _ in score_runs(missing, name, **settings) if missing else ():
            pass
    scores: dict[str, dict[str, Score]] = {}
    for run_name, run in opened.items():
        stored = run.scores
        found = {key: _find_score(stored, *measures[key]) for key in measures}
        scores[run_name] = {key: score for key, score in found.items() if score is not None}
    return scores


def _strip_part(name: str) -> str:
    """Return METRIC/PROTOCOL of the name METRIC/PROTOCOL/PART."""
    return "/".join(name.split("/")[:2])


def _find_score(scores: Iterable[Score], name: str, settings: Mapping[str, Any]) -> Score | None:
    """Return the newest score of a metric, or of one part of it, with exactly these settings, on all rows."""
    wanted = json.dumps(metric[_strip_part(name)].resolve(settings), sort_keys=True)
    for score in reversed(list(scores)):
        same = name in (score.name, f"{score.metric}/{score.protocol}")
        known = json.dumps(score.details.get("settings"), sort_keys=True)
        if same and known == wanted and "random" not in score.details.get("rows", ""):
            return score
    return None


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
