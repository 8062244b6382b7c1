"""The one way to score runs: encode models together, measure what is missing, append each score as soon as it exists.

`Run.score`, `unbraid evaluate`, sweeps and experiments all go through `score_subjects`. A metric that the data or the
model do not allow is skipped with its reason, unless the user named it in full. A metric that runs out of memory is
tried once more after the codes of all other models are dropped. Many runs on a GPU that are to get costly metrics are
scored by processes side by side, each of them by `Job.score` (`scoring_pool`).
"""

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unbraid.errors import DataError, MissingExtraError, RunError, SettingError, UnbraidError, UsageError, unknown
from unbraid.latents import Space
from unbraid.memory import MemoryFullError, is_out_of_memory
from unbraid.metrics.arrays import FACTOR_BINS, RealFactorError
from unbraid.metrics.background import Requests, Schedule, schedule_metrics
from unbraid.metrics.base import Evaluation, Score, encode_together, expand, metric, share_results
from unbraid.metrics.needs import INCEPTION_VARIABLE, check_needs
from unbraid.metrics.train_test_split import REPEATED
from unbraid.progress import name_slow_work
from unbraid.store import RunFolder
from unbraid.training.grouping import split_evenly, structure_key
from unbraid.training.interrupt import Interrupted, Stop
from unbraid.training.memory import free_memory

DEFAULT_METRICS = ("mig", "elbo", "reconstruction/nats", "kl", "mi/exact", "tc/exact", "dimension-kl")
"""Metrics that are measured by default; `choose_default_metrics` adds the protocol of `elbo` and `kl`."""

MAX_ENCODED_TOGETHER = 16
"""On a large data set each encoded model holds about 150 MB of codes until it is scored."""

LEFT_OUT = "left-out"
"""Name of the JSON file in a run folder with the metrics that the run does not allow, and why."""


@dataclass
class Subject:
    """A finished run to score: its folder, and its model with the rows."""

    folder: RunFolder
    evaluation: Evaluation


@dataclass
class Result:
    """New scores of one run by metric, and why metrics were skipped or failed."""

    scores: dict[str, list[Score]] = field(default_factory=dict)
    skipped: dict[str, UnbraidError] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    memory_was_full: bool = False
    """True if one of the failures is a lack of memory, which another process may have taken."""


def choose_default_metrics(spaces: Iterable[Space]) -> list[str]:
    """Return the full names of the default metrics.

    All runs get one ELBO protocol so that they can be compared: closed form if every latent space has one, sampled
    otherwise.
    """
    bound = "closed-form" if all(space.closed_form for space in spaces) else "sampled"
    return expand(f"{name}/{bound}" if name in ("elbo", "kl") else name for name in DEFAULT_METRICS)


def choose_compared_metrics(first: Evaluation, second: Evaluation) -> tuple[list[str], list[str]]:
    """Return what two models are compared by, and notes: MIG if the data have factors, the ELBO if both bounds compare.

    Bounds of different likelihoods do not: one may be a density and the other a probability.
    """
    elbo = next(name for name in choose_default_metrics([first.space, second.space]) if name.startswith("elbo/"))
    names, notes = ["mig"] if first.dataset.factors else [], []
    if all(_allows(each, elbo) for each in (first, second)):
        kinds = [[type(each) for each in evaluation.model.likelihoods.values()] for evaluation in (first, second)]
        if kinds[0] == kinds[1]:
            names.append(elbo)
        else:
            notes.append("elbo is left out: bounds of different likelihoods do not compare.")
    if not names:
        raise UsageError("These runs have neither factors nor bounds that compare; name a score with --metric.")
    return names, notes


def _allows(evaluation: Evaluation, name: str) -> bool:
    try:
        check_needs(evaluation, name, metric[name].facts.needs, {})
    except (DataError, UsageError):
        return False
    return True


def score_subjects(
    subjects: Sequence[Subject],
    names: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    *,
    required: Collection[str] = (),
    missing_only: bool = False,
    stop: Stop | None = None,
    save: bool = True,
) -> Iterator[Result]:
    """Measure metrics on runs and yield a result per run, in order; scores are appended to scores.jsonl if `save`.

    A setting goes to every metric that has it. A metric in `required` raises what it raises; any other is skipped with
    its reason. With `missing_only`, metrics that a run already has or does not allow are not measured, and reasons of
    new skips go to left-out.json. Codes are dropped after each run unless a metric compares models with each other.
    """
    requested = assign_settings(names, settings or {})
    compares = any("peers" in metric[name].facts.needs for name in requested)
    plan = ScoringPlan(required, missing_only, stop, save)
    for part in split_for_encoding(subjects):
        asked = []
        for subject in part:
            missing = find_missing_metrics(subject.folder, requested) if missing_only else requested
            asked.append((subject, {name: requested[name] for name in missing}))
        with plan.open(asked) as runs:
            for run in runs:
                run.measure(run.schedule.order)
                if not compares and len(subjects) > 1:
                    run.subject.evaluation.forget()
                yield run.finish()


def score_missing(subjects: Sequence[Subject], names: Sequence[str]) -> list[str]:
    """Measure the metrics that runs lack, and return a note for each that needs a package."""
    return list_notes(score_subjects(subjects, names, missing_only=True))


def list_notes(results: Iterable[Result], failures: Sequence[str] = ()) -> list[str]:
    """Return a note for each metric that needs a package; raise the first failure after the last result.

    `failures` are earlier ones.
    """
    notes: dict[str, None] = {}
    failed = list(failures)
    for result in results:
        failed += result.failures
        for name, error in result.skipped.items():
            if isinstance(error, MissingExtraError):  # other reasons are in left-out.json
                notes[describe_unavailable(name, error)] = None
    if failed:
        raise RunError(failed[0])
    return list(notes)


def describe_unavailable(name: str, error: MissingExtraError) -> str:
    """Return the note that a metric is left out until its package is installed."""
    return f"{name} is left out: {error}"


@dataclass(frozen=True)
class ScoringPlan:
    """How runs are scored; the arguments are those of `score_subjects`."""

    required: Collection[str] = ()
    missing_only: bool = False
    stop: Stop | None = None
    save: bool = True

    @contextmanager
    def open(
        self, asked: Sequence[tuple[Subject, Requests]], background: bool | None = None
    ) -> Iterator[list["RunScoring"]]:
        """Encode runs together, start processes for what can be measured beside the rest, and yield a scoring of each.

        A run may be asked for several times, with other settings. `background` is as in `schedule_metrics`.
        """
        check_not_stopped(self.stop)
        encoded = list({id(subject): subject.evaluation for subject, own in asked if own}.values())
        _encode(encoded)
        with schedule_metrics([(subject.evaluation, own) for subject, own in asked], background) as schedules:
            yield [
                RunScoring(self, subject, own, schedule, encoded)
                for (subject, own), schedule in zip(asked, schedules, strict=True)
            ]


@dataclass
class RunScoring:
    """The scoring of one run, which may be measured in steps."""

    plan: ScoringPlan
    subject: Subject
    requested: Requests
    schedule: Schedule
    encoded: Sequence[Evaluation]
    """All models whose codes are in memory."""
    result: Result = field(default_factory=Result)

    def measure(self, names: Sequence[str]) -> None:
        """Measure some of the metrics, and store each score at once."""
        run, order = self.subject.folder.path.name, self.schedule.order
        with name_slow_work(f"{run}: computing scores") as work:
            for name in names:
                check_not_stopped(self.plan.stop)
                work.doing = f"{run}: computing {name} ({order.index(name) + 1} of {len(order)})"
                self._measure_one(name)

    def _measure_one(self, name: str) -> None:
        try:
            scores = _measure_within_memory(name, self.schedule.measure, self.encoded)
        except (DataError, UsageError) as error:
            told = _drop_followed_advice(error, self.requested)
            if name in self.plan.required or (self.requested[name] and isinstance(error, SettingError)):
                raise told from None
            self.result.skipped[name] = told
        except RunError as error:
            self.result.failures.append(f"{self.subject.folder.path.name}: {error}")
            self.result.memory_was_full |= isinstance(error, MemoryFullError)
        else:
            self.result.scores[name] = scores
            for score in scores if self.plan.save else ():
                self.subject.folder.append_line("scores", score.as_record())

    def finish(self) -> Result:
        """Return the result, in the order in which metrics were asked for; record what the run does not allow."""
        if self.plan.missing_only:
            _record_skipped(self.subject.folder, self.result.skipped)
        made = self.result.scores
        return replace(self.result, scores={name: made[name] for name in self.requested if name in made})


class Job(NamedTuple):
    """A run that a process is to score: its folder, metrics with settings, and how; see `ScoringPlan`."""

    folder: Path
    root: Path
    """The folder that no link may lead out of; see `RunFolder`."""
    requests: tuple[Requests, ...]
    """Each a set of metrics with their settings; a metric may be asked for several times, with other settings."""
    rows: int | None = None
    required: frozenset[str] = frozenset()
    missing_only: bool = False
    save: bool = True
    begin_at: float = 0.0
    """Where in the list of metrics to begin, from 0 to 1; those before it come last. Processes that begin at different
    places do not all need the GPU at the same moment."""

    def score(self, subject: Subject, background: bool | None = False) -> list[Result]:
        """Measure the metrics here, and return a result for each set of them; `background` as in `schedule_metrics`."""
        plan, results = ScoringPlan(self.required, self.missing_only, save=self.save), []
        with plan.open([(subject, own) for own in self.requests], background) as runs:
            for run in runs:
                order = run.schedule.order
                first = int(self.begin_at * len(order))
                run.measure(order[first:] + order[:first])
                results.append(run.finish())
        return results


def assign_settings(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of each metric by its full name; a setting that no metric has is refused."""
    expanded = expand(names)
    known = {key for name in expanded for key in metric[name].settings}
    for key in settings:
        if key not in known:
            raise unknown("setting", key, known, of="these metrics")
    return {name: {key: settings[key] for key in settings if key in metric[name].settings} for name in expanded}


def _drop_followed_advice(error: UnbraidError, requested: Mapping[str, Mapping[str, Any]]) -> UnbraidError:
    """Return the error without its advice to set factor_bins if the user did so, for the scores that have it."""
    followed = any(FACTOR_BINS in settings for settings in requested.values())
    return UsageError(error.problem) if followed and isinstance(error, RealFactorError) else error


def _measure_within_memory(name: str, measure: Any, encoded: Sequence[Evaluation]) -> list[Score]:
    """Measure a metric; when memory is full, drop the codes of all models and try once more."""
    try:
        return measure(name)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    for evaluation in encoded:
        evaluation.forget()
    free_memory()
    try:
        return measure(name)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = f"{name} does not fit in memory, even for one model; leave it out."
        raise MemoryFullError(message) from error


def split_for_encoding(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Return subjects in parts that can be encoded as one stacked model: of one structure, on the same rows."""
    if len(subjects) < 2:
        return [list(subjects)] if subjects else []
    groups: list[list[Subject]] = []
    for _, same in itertools.groupby(subjects, key=lambda subject: structure_key(subject.folder.config)):
        group: list[Subject] = []
        for subject in same:
            first, this = (group or [subject])[0].evaluation, subject.evaluation
            if first.dataset is not this.dataset or not torch.equal(first.rows, this.rows):
                groups, group = [*groups, group], []
            group.append(subject)
        groups.append(group)
    return split_evenly(groups, MAX_ENCODED_TOGETHER)


def _encode(evaluations: Sequence[Evaluation]) -> None:
    """Encode models in one stacked pass, or in as few as memory allows; a single one encodes itself when needed."""
    if len(evaluations) < 2:
        return
    if not _is_faster_stacked(evaluations[0].dataset.device):
        share_results(evaluations)
        return
    try:
        encode_together(evaluations)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    free_memory()
    half = len(evaluations) // 2
    _encode(evaluations[:half])
    _encode(evaluations[half:])


def _is_faster_stacked(device: torch.device) -> bool:
    """Return whether a stacked pass pays: not on a CPU, where single models are 1.4 to 4.7 times as fast.

    There each model encodes only the rows that a metric needs.
    """
    return device.type != "cpu"


def find_missing_metrics(folder: RunFolder, names: Iterable[str]) -> list[str]:
    """Return the metrics without a score of default settings, except those that the run does not allow."""
    scores = [Score.from_record(line) for line in folder.read_lines("scores")]
    present = {f"{score.metric}/{score.protocol}" for score in scores if score.has_default_settings}
    present |= {name for name in read_left_out(folder) if not _needs_given_weights(name)}
    return [name for name in names if name not in present]


def _needs_given_weights(name: str) -> bool:
    """Return whether a metric was left out for weights that the environment names by now."""
    return name in metric and "weights" in metric[name].facts.needs and INCEPTION_VARIABLE in os.environ


def read_left_out(folder: RunFolder) -> dict[str, str]:
    """Return the metrics that a run does not allow, with the reason of each."""
    return dict(folder.read_json(LEFT_OUT).get("metrics", {}))


def _record_skipped(folder: RunFolder, skipped: Mapping[str, UnbraidError]) -> None:
    """Write reasons to left-out.json, except for a missing package, which can be installed."""
    lasting = {name: str(error) for name, error in skipped.items() if not isinstance(error, MissingExtraError)}
    if lasting:
        folder.write_json(LEFT_OUT, {"metrics": {**read_left_out(folder), **lasting}})


def describe_skipped(skipped: Mapping[str, UnbraidError]) -> list[str]:
    """Return a note for each metric and reason, with the protocols that were skipped."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, error in skipped.items():
        family = name.partition("/")[0]
        advises = isinstance(error, RealFactorError)  # which names scores by their full names
        shared.setdefault((family, str(error) if advises else str(error).replace(name, family)), []).append(name)
    notes = []
    for (_, reason), names in shared.items():
        reason = str(skipped[names[0]]) if len(names) == 1 else reason
        notes.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} left out: {reason}")
    return notes


def describe_repeats(scores: Iterable[Score]) -> list[str]:
    """Return a note for scores whose test rows are mostly training rows."""
    found = {f"{s.metric}/{s.protocol}": s.details[REPEATED] for s in scores if REPEATED in s.details}
    if not found:
        return []
    rows, share = (max(facts[key] for facts in found.values()) for key in ("rows", "seen_in_training"))
    return [
        f"{', '.join(found)}: rows are drawn with repetition from {rows:,} rows, so {share:.0%} of the test rows are "
        "also training rows, and accuracies (informativeness of dci) are optimistic. Other protocols test on new rows."
    ]


def check_not_stopped(stop: Stop | None) -> None:
    """Raise `Interrupted` if the user has asked to stop."""
    if stop is not None and stop.requested:
        raise Interrupted("Stopped between two scores; those that are stored stay.")
