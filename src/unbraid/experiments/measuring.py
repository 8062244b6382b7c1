"""Scores of an experiment's runs: with settings of their own, derived from others, and before the end of training."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from unbraid.experiments.base import Experiment
from unbraid.metrics import Score, metric
from unbraid.metrics.background import Requests
from unbraid.metrics.base import expand
from unbraid.report.tables import Member
from unbraid.run import Run, score_runs
from unbraid.scores_ahead import ScoresAhead
from unbraid.scoring import find_missing_metrics, score_missing
from unbraid.store import RunFolder

Measures = Mapping[str, tuple[str, Mapping[str, Any]]]


def derive_scores(facts: Experiment, series: str, scores: Mapping[str, Score]) -> dict[str, Score]:
    """Return the scores of a run that the experiment computes from the others."""
    derived = {}
    for name, derive in {**facts.derived, **facts.derived_by_series.get(series, {})}.items():
        try:
            derived[name] = derive(scores)
        except KeyError:  # a run that diverged, or whose data do not allow the score
            continue
    return derived


def measure_all(
    runs: Sequence[RunFolder], measures: Measures, device: torch.device, opened: Mapping[RunFolder, Run] | None = None
) -> dict[RunFolder, dict[str, Score]]:
    """Return all scores by run, with those in `measures`: read those that are stored and measure the others.

    `opened` are runs that need not be loaded again.
    """
    opened = dict(opened or {})  # each is loaded once
    for name, settings in _list_metrics(measures):
        missing = [folder for folder in runs if find_score(_read_scores(folder), name, settings) is None]
        opened |= {folder: Run(folder, device=device) for folder in missing if folder not in opened}
        for _ in score_runs([opened[folder] for folder in missing], name, **settings) if missing else ():
            pass
    scores: dict[RunFolder, dict[str, Score]] = {}
    for folder in runs:
        stored = _read_scores(folder)
        found = {key: find_score(stored, *measures[key]) for key in measures}
        newest = {score.name: score for score in stored if score.has_default_settings}
        scores[folder] = newest | {key: score for key, score in found.items() if score is not None}
    return scores


def measure_ahead(ahead: ScoresAhead, folders: Sequence[RunFolder], metrics: Sequence[str], measures: Measures) -> None:
    """Begin to measure what `measure_metrics` and `measure_all` will ask for, except what compares models."""
    asked = [(folder, wanted) for folder in folders if (wanted := _list_missing(folder, metrics, measures))]
    for folder, _ in asked:
        folder.check_writable("scores")
    ahead.add(asked, required={name for name, _ in _list_metrics(measures)})


def measure_metrics(metrics: Sequence[str], folders: Sequence[RunFolder], device: torch.device) -> dict[RunFolder, Run]:
    """Measure the metrics that runs lack, and return the runs."""
    opened = {folder: Run(folder, device=device) for folder in folders}  # `reproduce` loads their data once
    missing = [run for run in opened.values() if find_missing_metrics(run.folder, metrics)]
    if missing:
        score_missing([run.subject() for run in missing], metrics)  # loads their models
    return opened


def score_snapshots(
    facts: Experiment,
    series: str,
    folders: Mapping[str, RunFolder],
    metrics: Sequence[str],
    measures: Measures,
    device: torch.device,
) -> dict[str, dict[str, Score]]:
    """Return the scores of runs before the last fifth of training, by the runs' names."""
    snapshots = {name: folder.snapshot for name, folder in folders.items()}
    opened = measure_metrics(metrics, list(snapshots.values()), device)
    scores = measure_all(list(snapshots.values()), measures, device, opened)
    return {name: scores[folder] | derive_scores(facts, series, scores[folder]) for name, folder in snapshots.items()}


def replace_scores(members: Iterable[Member], earlier: Mapping[str, Mapping[str, Score]]) -> list[Member]:
    """Return members with their earlier scores; those without keep their own."""
    return [member._replace(scores=dict(earlier.get(member.run, member.scores))) for member in members]


def find_score(scores: Iterable[Score], name: str, settings: Mapping[str, Any]) -> Score | None:
    """Return the newest score of a metric, or of one part of it, with exactly these settings, on all rows."""
    wanted = _format_settings(name, settings)[1]
    for score in reversed(list(scores)):
        same = name in (score.name, f"{score.metric}/{score.protocol}")
        known = json.dumps(score.details.get("settings"), sort_keys=True)
        if same and known == wanted and "random" not in score.details.get("rows", ""):
            return score
    return None


def _read_scores(folder: RunFolder) -> list[Score]:
    return [Score.from_record(line) for line in folder.read_lines("scores")]


def _list_missing(folder: RunFolder, metrics: Iterable[str], measures: Measures) -> list[Requests]:
    """Return what a run lacks, except scores that compare models: metrics together, and each measure alone."""
    scores = _read_scores(folder)
    lacking = find_missing_metrics(folder, [name for name in metrics if not _compares(name)])
    wanted: list[Requests] = [{name: {} for name in lacking}] if lacking else []
    for name, settings in _list_metrics(measures):
        asked_above = name in lacking and _format_settings(name, settings) == _format_settings(name, {})
        if not (asked_above or _compares(name)) and find_score(scores, name, settings) is None:
            wanted.append({name: settings})
    return wanted


def _list_metrics(measures: Measures) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each metric with its settings once, although several of its parts may be asked for."""
    pairs = [(_strip_part(name), settings) for name, settings in measures.values()]
    return list({_format_settings(*pair): pair for pair in pairs}.values())


def _format_settings(name: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return a metric and all its settings as text, defaults included, to compare them."""
    name = _strip_part(name)
    return name, json.dumps(metric[name].resolve(settings), sort_keys=True)


def choose_metrics(facts: Experiment, folders: Iterable[RunFolder]) -> list[str]:
    """Return the metrics of an experiment that its runs allow: those of second stages need one."""
    staged = any(folder.config.parent is not None for folder in folders)
    return [each for each in expand(facts.metrics) if staged or "staged" not in metric[each].facts.needs]


def _compares(name: str) -> bool:
    """Return True if a metric compares models with each other."""
    return "peers" in metric[name].facts.needs


def _strip_part(name: str) -> str:
    """Return METRIC/PROTOCOL of the name METRIC/PROTOCOL/PART."""
    return "/".join(name.split("/")[:2])
