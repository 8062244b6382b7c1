"""From an experiment's name to its verdicts: ordinary runs of ordinary sweeps, then claims, then a folder.

Sweeps live in ROOT/PAPER under names made of their settings, so experiments that need the same runs share them, and
whatever is finished is never trained again.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unbraid import atomic
from unbraid.config import Choice, Config
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
from unbraid.experiments.derived_series import Parents, RefinedSeries, match_size, refine_series
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.writing import Provenance, refuse_smaller_scale, write_results
from unbraid.latents import parse_latents
from unbraid.methods import objective
from unbraid.metrics import Score, metric
from unbraid.metrics.base import expand
from unbraid.models.multimodal import MODALITIES, SHARED
from unbraid.report.tables import Member
from unbraid.run import Run, score_runs
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep, sweep
from unbraid.training import choose_device
from unbraid.training.interrupt import explain_how_to_continue

FOLLOWS = {REFINES, AS_LARGE_AS}
DRIFT = 0.02
"""Relative change of the mean loss, from the last fifth of training but one to the last, of a run that has settled."""


@dataclass(frozen=True)
class Reproduction:
    """An experiment that was carried out."""

    name: str
    scale: str
    folder: Path
    verdicts: tuple[Verdict, ...]
    runs: int
    trained: int
    minutes: float
    notes: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """Plain mapping, for programs."""
        facts = {"experiment": self.name, "scale": self.scale, "folder": str(self.folder), "runs": self.runs}
        told = {"trained": self.trained, "minutes": self.minutes, "notes": list(self.notes)}
        return {**facts, **told, "verdicts": [verdict.as_record() for verdict in self.verdicts]}


def reproduce(
    name: str,
    *,
    scale: str = "small",
    root: str | Path = "runs/reproduce",
    out: str | Path = "results",
    device: str = "auto",
    runs: str | Path | None = None,
) -> list[Reproduction]:
    """Carry out the experiments of a paper (`chen2018`) or one of them (`chen2018/fig2`).

    `scale` is `smoke` (seconds; shows that the program works), `small` (minutes on 2 cores), `budget` (at most 20
    minutes on one H200) or `paper` (the paper's own protocol). Runs are kept below `root` and reused; table, figure and
    verdicts go to OUT/PAPER/ID. `runs` names a sweep that is there already, or a folder of sweeps: a series with runs
    in one takes them all, whatever their seeds, and is not trained; they need settings and scores, but no weights.
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
    """Where runs are taken from instead of being trained."""

    path: Path
    sweeps: tuple[Sweep, ...]

    @classmethod
    def open(cls, path: Path) -> "_Source":
        """The sweep in a folder, or all of those below it."""
        below = sorted(each.parent for each in path.glob("*/sweep.yaml"))
        return cls(path, tuple(Sweep(each) for each in ([path] if (path / "sweep.yaml").exists() else below or [path])))


def _reproduce_one(name: str, scale: str, root: Path, out: Path, device: str, source: _Source | None) -> Reproduction:
    facts, started = experiment[name].facts, time.time()
    paper = name.partition("/")[0]
    with _add_minutes(root / paper / "minutes.json", f"{name} {scale}") as spent:
        if facts.measure is not None:
            results, runs, notes = Results(tuple(facts.measure(facts.get_scale(scale).settings)), scale), [], []
        else:
            results, runs, notes = _run_experiment(facts, scale, root / paper, device, source)
    verdicts = tuple(judge(claim, results) for claim in facts.claims)
    trained = sum(run.model_path.stat().st_mtime >= started for run in runs if run.model_path.exists())
    command = f"unbraid reproduce {name} --scale {scale}" + (f" --device {device}" if device != "auto" else "")
    command += f" --runs {source.path}" if source else ""
    where = Provenance(command, scale, spent(), len(runs), trained, choose_device(device))
    notes += write_results(out / name, experiment[name], facts, results, verdicts, where, [*facts.notes, *notes])
    return Reproduction(name, scale, out / name, verdicts, len(runs), trained, where.minutes, tuple(notes))


def _run_experiment(
    facts: Experiment, scale: str, root: Path, device: str, source: _Source | None
) -> tuple[Results, list[RunFolder], list[str]]:
    """Train and score every series, or take its runs from where they are."""
    members: list[Member] = []
    runs: list[RunFolder] = []
    notes: list[str] = []
    unsettled: set[str] = set()
    asked, done = facts.build_sweeps(scale), dict[str, tuple[_Series, list[Member]]]()
    stored = _find_stored(facts, scale, asked, source) if source else {}
    for name, settings in asked.items():
        done[name] = found, own = _run_series(facts, scale, name, settings, stored, done, root, device, notes)
        members += found.scored(own, choose_device(device))
        unsettled |= {f"{name}/{member.run}" for member in own if not found.has_settled(member)}
        runs += [found.folder(member) for member in own]
    if source:
        notes.append(_describe_origin(source, list(stored), [name for name in asked if name not in stored]))
    opened = ModelCache({m.run: run for m, run in zip(members, runs, strict=True)}, choose_device(device))
    if facts.baselines is not None:
        members += facts.baselines(facts.build_sweeps(scale))
    return Results(tuple(members), scale, frozenset(unsettled), opened), runs, notes


def _run_series(
    facts: Experiment,
    scale: str,
    name: str,
    settings: Mapping[str, Any],
    stored: Mapping[str, "_Series"],
    done: Mapping[str, tuple["_Series", list[Member]]],
    root: Path,
    device: str,
    notes: list[str],
) -> tuple["_Series", list[Member]]:
    """The runs of a series: stored ones, or else trained now, upon runs of earlier series where it says so."""
    only = facts.only.get(name, {})
    if name in stored:
        return stored[name], stored[name].members({**settings, **only}, every_seed=True)
    parents = _choose_parents(*done[settings[REFINES]], only) if REFINES in settings else []
    if AS_LARGE_AS in settings:
        others, members = done[settings[AS_LARGE_AS]]
        settings = match_size(settings, [others.folder(member) for member in members], [run for _, run in parents])
    if REFINES in settings:
        stages = refine_series(parents, settings, facts.metrics, root, device, notes)
        return _Series(facts, scale, name, stages), stages.members
    single = [each for each in expand(facts.metrics) if "staged" not in metric[each].facts.needs]
    found = _Series(facts, scale, name, _run_sweep(settings, single, root, device, notes))
    return found, found.members({**settings, **only}, every_seed=False)


def _choose_parents(series: "_Series", members: Sequence[Member], only: Mapping[str, Any]) -> Parents:
    """The runs of a series that another one refines, of those settings that it asks for."""
    fitting = [m for m in members if all(m.settings.get(key) in list_values(value) for key, value in only.items())]
    return [(member, series.folder(member)) for member in fitting]


def _find_stored(
    facts: Experiment, scale: str, asked: Mapping[str, Mapping[str, Any]], source: _Source
) -> dict[str, "_Series"]:
    """The series that have runs there; refuses a place that has none at all. What follows from others is trained."""
    wanted = {name: {**own, **facts.only.get(name, {})} for name, own in asked.items() if not FOLLOWS & own.keys()}
    found: dict[str, _Series] = {}
    for name, settings in wanted.items():
        every = [_Series(facts, scale, name, sweep) for sweep in source.sweeps]
        having = [series for series in every if series.members(settings, every_seed=True)]
        found |= {name: having[0]} if having else {}
    if not found:
        names = " or ".join(wanted)
        raise UsageError(f"{source.path} has no run of {names} with the settings of scale {scale}.")
    return found


def _describe_origin(source: _Source, stored: Sequence[str], trained: Sequence[str]) -> str:
    """Where the runs of an experiment are from."""
    if not trained:
        return f"Runs were taken from {source.path}, with all of their seeds."
    of, others = ", ".join(stored), ", ".join(trained)
    return f"Runs of {of} were taken from {source.path}, with all of their seeds; those of {others} were trained."


def _run_sweep(asked: Mapping[str, Any], metrics: Sequence[str], root: Path, device: str, notes: list[str]) -> Sweep:
    settings, told = _choose_data(asked)
    made = sweep(settings.pop("recipe"), metrics=metrics, root=root, device=device, report=False, **settings)
    notes += [note for note in (*told, *made.notes) if note not in notes]
    return made


@dataclass(frozen=True)
class _Series:
    """The runs of one series, in a sweep that may hold others."""

    facts: Experiment
    scale: str
    name: str
    source: Sweep | RefinedSeries

    def folder(self, member: Member) -> RunFolder:
        return self.source.folder.run_folder(member.run)

    def members(self, asked: Mapping[str, Any], every_seed: bool) -> list[Member]:
        """Members with these settings; a sweep that was extended, or made for something else, has others."""
        wanted = {key: value for key, value in asked.items() if not (every_seed and key == "seed")}
        return [member for member in self.source.members if matches_settings(self.folder(member).config, wanted)]

    def scored(self, members: Sequence[Member], device: Any) -> list[Member]:
        """The members under the name of their series, with all scores, and of their settings only the axes."""
        at = self.facts.get_scale(self.scale)
        extra = _measure_all([self.folder(m) for m in members if m.state == "finished"], at.measures, device)
        made, axes = [], self.facts.list_axes(self.scale)
        for member in members:
            scores = {**member.scores, **extra.get(member.run, {})}
            kept = {key: member.settings[key] for key in axes if key in member.settings}
            scores |= _derive_scores(self.facts, scores)
            settings = {"recipe": self.name, **kept}
            made.append(Member(f"{self.name}/{member.run}", settings, member.state, member.trouble, scores))
        return made

    def has_settled(self, member: Member) -> bool:
        """Whether a finished run no longer moved; one that did not finish has no scores that could mislead."""
        steps = self.facts.build_sweeps("paper")[self.name].get("steps") if "paper" in self.facts.scales else None
        return member.state != "finished" or has_settled(self.folder(member), steps)


def matches_settings(config: Config, wanted: Mapping[str, Any]) -> bool:
    """Whether a run is one of those that settings ask for, as far as its config has them by the same name.

    What they do not say of the objective and the prior is meant to be as usual.
    """
    known = {**config.objective.settings, **asdict(config.training), "recipe": config.objective.name}
    known |= {"data": config.data.name, "encoder": _named(config.encoder), "decoder": _named(config.decoder)}
    known["network"] = known["encoder"]
    known["prior"] = config.prior.name if config.prior else "standard"
    wanted = {**objective[config.objective.name].resolve({}), "prior": "standard", **wanted}
    known |= {f"data.{key}": value for key, value in config.data.settings.items()}
    for key in wanted.keys() & known.keys():
        value = wanted[key]
        allowed = [value.wanted, value.instead] if isinstance(value, StandIn) else list_values(value)
        if known[key] not in allowed:
            return False
    return _same_encoders(config.encoder, wanted) and _same_latents(config, wanted)


def list_values(setting: Any) -> list[Any]:
    """The values of a setting, which may be an axis."""
    return list(setting) if isinstance(setting, (list, range)) else [setting]


def _named(section: Choice) -> str:
    """The network of a section, or those of its modalities."""
    if section.name != MODALITIES:
        return section.name
    return "+".join(dict.fromkeys(each["name"] for each in section.settings.values()))


def _same_encoders(section: Choice, wanted: Mapping[str, Any]) -> bool:
    """Whether encoders have the settings wanted of them: `encoder.NAME.key` of one modality, else `encoder.key`."""
    several = section.settings if section.name == MODALITIES else {"": section.settings}
    for name, own in several.items():
        for key, value in own.items():
            keys = [f"encoder.{name}" if key == "name" else f"encoder.{name}.{key}", f"encoder.{key}"]
            asked = [wanted[each] for each in keys if each in wanted]
            if asked and value not in list_values(asked[0]):
                return False
    return True


def _same_latents(config: Config, wanted: Mapping[str, Any]) -> bool:
    """Whether a run has the latents that settings ask for; an axis of them is not looked at."""
    given = {**objective[config.objective.name].facts.defaults, **wanted}
    if config.likelihood.name == MODALITIES:  # settings then name the shared and the private latents
        sizes = {name: latent["size"] for name, latent in config.latents.items()}
        known = {"c": sizes.pop(SHARED), "s": max(sizes.values(), default=0)}
        return all(known[key] in list_values(given.get(key, 5)) for key in known)
    own = {key: value for key, value in given.items() if key == "z" or key.partition(".")[0] == "latents"}
    return any(isinstance(value, list) for value in own.values()) or parse_latents(own) == config.latents


def _choose_data(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings with a data set that is here, and a note where it stands in for another."""
    data = settings.get("data")
    if not isinstance(data, StandIn):
        return dict(settings), []
    here = any(item.name == data.wanted and item.state != "missing" for item in describe())
    notes = [] if here else [f"{data.instead} stand in for {data.wanted}, whose files are not here."]
    return {**settings, "data": data.wanted if here else data.instead}, notes


def _derive_scores(facts: Experiment, scores: Mapping[str, Score]) -> dict[str, Score]:
    made = {}
    for name, derive in facts.derived.items():
        try:
            made[name] = derive(scores)
        except KeyError:  # a run that diverged, or whose data do not allow the score
            continue
    return made


def has_settled(run: RunFolder, paper_steps: int | None) -> bool:
    """Whether a run trained for as long as the paper's, or its loss no longer moved when it ended."""
    if paper_steps is not None and run.config.training.steps >= paper_steps:
        return True
    losses = [line["loss"] for line in run.read_lines("history") if "loss" in line]
    fifth = len(losses) // 5
    if fifth < 1:
        return False
    before, last = np.mean(losses[-2 * fifth : -fifth]), np.mean(losses[-fifth:])
    return bool(abs(last - before) <= DRIFT * abs(last))


def _measure_all(
    runs: Sequence[RunFolder], measures: Mapping[str, tuple[str, Mapping[str, Any]]], device: Any
) -> dict[str, dict[str, Score]]:
    """Return scores with settings of their own by run: stored ones, and the others measured now."""
    asked = [(_metric(what), how) for what, how in measures.values()]
    once = [each for place, each in enumerate(asked) if each not in asked[:place]]  # one metric may have many parts
    opened = {folder.path.name: Run(folder, device=device) for folder in (runs if measures else ())}
    for what, how in once:
        missing = [run for run in opened.values() if _find_score(run.scores, what, how) is None]
        for _ in score_runs(missing, what, **how) if missing else ():
            pass
    made: dict[str, dict[str, Score]] = {}
    for name, run in opened.items():
        stored = run.scores
        found = {key: _find_score(stored, *measures[key]) for key in measures}
        made[name] = {key: score for key, score in found.items() if score is not None}
    return made


def _metric(name: str) -> str:
    """The metric of a score's name, without its part."""
    return "/".join(name.split("/")[:2])


def _find_score(scores: Iterable[Score], name: str, settings: Mapping[str, Any]) -> Score | None:
    """The newest score of a metric, or of one part of it, with exactly these settings, on all rows."""
    wanted = json.dumps(metric[_metric(name)].resolve(settings), sort_keys=True)
    for score in reversed(list(scores)):
        same = name in (score.name, f"{score.metric}/{score.protocol}")
        known = json.dumps(score.details.get("settings"), sort_keys=True)
        if same and known == wanted and "random" not in score.details.get("rows", ""):
            return score
    return None


@contextmanager
def _add_minutes(path: Path, key: str) -> Iterator[Any]:
    """Add the time spent inside to what earlier, interrupted calls have spent; yields a function that tells the sum."""
    stored = _read_minutes(path)
    earlier, start = float(stored.get(key, 0.0)), time.perf_counter()
    try:
        yield lambda: _read_minutes(path).get(key, 0.0)
    finally:
        spent = earlier + (time.perf_counter() - start) / 60
        atomic.write_text(path, json.dumps({**_read_minutes(path), key: round(spent, 3)}, indent=2) + "\n")


def _read_minutes(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (ValueError, TypeError) as error:
        raise UnbraidError(f"{path} is not readable JSON: {error}.") from error
