"""When the series of an experiment are scored, and the scores of their runs before the last fifth of training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from unbraid.experiments.measuring import (
    choose_metrics,
    measure_ahead,
    measure_metrics,
    replace_scores,
    score_snapshots,
)
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.results import Results
from unbraid.experiments.series import Series
from unbraid.metrics import Score
from unbraid.report.tables import Member
from unbraid.scores_ahead import ScoresAhead
from unbraid.scoring import read_left_out
from unbraid.scoring_pool import can_start
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep
from unbraid.sweeps.run import describe_left_out


@dataclass
class Snapshots:
    """Scores of runs before the last fifth of training, and the runs that have none although they are short.

    A snapshot that has been scored needs no weights, as a run does not.
    """

    scores: dict[str, Mapping[str, Score]] = field(default_factory=dict)
    unchecked: set[str] = field(default_factory=set)

    def add(
        self,
        series: Series,
        found: Sequence[Member],
        scored: Sequence[Member],
        metrics: Sequence[str],
        device: torch.device,
    ) -> None:
        """Score the snapshots of a series; runs as long as the paper's need none."""
        names = {member.run: named.run for member, named in zip(found, scored, strict=True)}
        short = {names[run]: folder for run, folder in find_short(series, found).items()}
        kept = {name: run for name, run in short.items() if has_snapshot(run)}
        self.unchecked |= short.keys() - kept.keys()
        if kept:
            measures = series.facts.get_scale(series.scale).measures
            self.scores |= score_snapshots(series.facts, series.name, kept, metrics, measures, device)

    def attach(self, results: Results, folders: Mapping[str, RunFolder], device: torch.device) -> Results:
        """Return the results with those of the snapshots beside them."""
        if not self.scores:
            return replace(results, unchecked=frozenset(self.unchecked))
        models = {name: folder.snapshot if name in self.scores else folder for name, folder in folders.items()}
        members = tuple(replace_scores(results.members, self.scores))
        earlier = Results(members, results.scale, models=ModelCache(models, device))
        return replace(results, unchecked=frozenset(self.unchecked), earlier=earlier)


class _Waiting(NamedTuple):
    """A series whose scores are being measured, whether it was trained here, its finished runs, and their metrics."""

    series: Series
    found: list[Member]
    trained: bool
    runs: list[RunFolder]
    metrics: list[str]
    left_out: dict[str, dict[str, str]]
    """Metrics that a run was known not to allow before, by run."""


@dataclass
class SeriesScoring:
    """The scoring of series in order.

    On a CPU a series is scored as soon as it is trained. A training on a GPU leaves cores idle, so there a series is
    scored by processes while the next one trains; its sweep then measures nothing.
    """

    scale: str
    device: torch.device
    members: list[Member] = field(default_factory=list)
    runs: list[RunFolder] = field(default_factory=list)
    snapshots: Snapshots = field(default_factory=Snapshots)
    notes: list[str] = field(default_factory=list)
    waiting: _Waiting | None = None

    def begin(self, series: Series, found: list[Member], ahead: ScoresAhead, *, trained: bool = True) -> None:
        """Begin to score the runs of a series, or score them at once; runs that were not `trained` here have scores."""
        runs = [series.folder(member) for member in found if member.state == "finished"]
        metrics = choose_metrics(series.facts, runs)
        self.waiting = _Waiting(series, found, trained, runs, metrics, _read_left_out(runs))
        if not self.overlaps:
            self.finish(ahead)
            return
        short = find_short(series, found).values() if self.has_verdicts else ()
        snapshots = [run.snapshot for run in short if has_snapshot(run)]
        measures = series.facts.get_scale(self.scale).measures
        measure_ahead(ahead, runs, metrics if trained else (), measures)
        measure_ahead(ahead, snapshots, metrics, measures)

    def finish(self, ahead: ScoresAhead) -> None:
        """Collect the scores of the series that was begun last, and measure what is missing."""
        if self.waiting is None:
            return
        waiting, self.waiting = self.waiting, None
        series, found = waiting.series, waiting.found
        ahead.finish()
        metrics = [name for name in waiting.metrics if name not in ahead.unavailable]
        if waiting.trained and self.overlaps:
            measure_metrics(metrics, waiting.runs, self.device)  # what could not be measured ahead
            self._report(waiting, ahead)
        scored = series.score(found, self.device)
        if self.has_verdicts:
            self.snapshots.add(series, found, scored, metrics, self.device)
        self.members += scored
        self.runs += [series.folder(member) for member in found]

    def _report(self, waiting: _Waiting, ahead: ScoresAhead) -> None:
        """Note which metrics are left out, and write the tables of the sweep, which measured nothing itself."""
        notes = [ahead.unavailable[name] for name in waiting.metrics if name in ahead.unavailable]
        notes += describe_left_out(waiting.left_out, _read_left_out(waiting.runs))
        self.notes += [note for note in notes if note not in self.notes]
        if waiting.runs:
            folder = waiting.series.source.folder
            with folder.locked():
                Sweep(folder.path).write_tables()

    @property
    def overlaps(self) -> bool:
        """True if training leaves cores to scores, and this system can start processes for them."""
        return self.device.type != "cpu" and can_start()

    @property
    def has_verdicts(self) -> bool:
        return self.scale != "smoke"


def _read_left_out(runs: Sequence[RunFolder]) -> dict[str, dict[str, str]]:
    """Return the metrics that each run does not allow, with reasons."""
    return {run.path.name: read_left_out(run) for run in runs}


def find_short(series: Series, found: Sequence[Member]) -> dict[str, RunFolder]:
    """Return the finished runs of a series that have fewer steps than the paper's, by name."""
    return {
        member.run: series.folder(member)
        for member in found
        if member.state == "finished" and not series.has_paper_length(member)
    }


def has_snapshot(run: RunFolder) -> bool:
    return run.snapshot.status["state"] == "finished"
