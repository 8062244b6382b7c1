"""Scores of the runs of one group: what is missing is measured, on a few members at a time."""

from collections.abc import Sequence

from unbraid.api import Run
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.errors import DataError, RunError, UsageError
from unbraid.metrics.base import Evaluation, Score, encode_together, evaluate
from unbraid.store import RunFolder
from unbraid.training.grouping import at_most
from unbraid.training.interrupt import Interrupted, Stop
from unbraid.training.memory import free_memory, is_out_of_memory

TOGETHER = 16
"""Members that are encoded at once: on a large data set, each of them holds about 150 MB until it is scored."""


def score(
    folders: Sequence[RunFolder], dataset: FactorDataset, metrics: Sequence[str], stop: Stop | None = None
) -> list[str]:
    """Measure what is missing on finished runs of one group and append it to their scores; returns notes.

    What a run does not allow is recorded in its left-out.json and not tried again.
    """
    unscored = [folder for folder in folders if missing_scores(folder, metrics)]
    scorer = Scorer(metrics, stop or Stop())
    for part in at_most([unscored], TOGETHER) if unscored else ():
        scorer.score([Run(folder, dataset=dataset) for folder in part])
    if scorer.failures:  # told at the end, so that one member does not cost the others their scores
        raise RunError(scorer.failures[0])
    return list(dict.fromkeys(scorer.notes))


class Scorer:
    """Measures metrics on runs, and gathers what is to be told about it."""

    def __init__(self, metrics: Sequence[str], stop: Stop) -> None:
        self.metrics, self.stop = metrics, stop
        self.notes: list[str] = []
        self.failures: list[str] = []

    def score(self, runs: Sequence[Run]) -> None:
        """Encode runs together, and score and forget one after the other."""
        refuse_if_stopped(self.stop)
        sound = [run for run in runs if self._sound(run)]
        encoded = evaluations(sound) if sound else []
        for run, evaluation in zip(sound, encoded, strict=True):
            for name in missing_scores(run.folder, self.metrics):
                refuse_if_stopped(self.stop)
                self._measure(run, evaluation, name, encoded)
            evaluation.forget()

    def _sound(self, run: Run) -> bool:
        """Whether a run's files are those that it finished with."""
        try:
            run.folder.refuse_changed()
        except RunError as error:
            self.failures.append(str(error))
            return False
        return True

    def _measure(self, run: Run, evaluation: Evaluation, name: str, encoded: Sequence[Evaluation]) -> None:
        try:
            made = _evaluate(evaluation, name, encoded)
        except (DataError, UsageError) as error:
            self._leave_out(run.folder, name, str(error))
        except RunError as error:
            self.failures.append(f"{run.path.name}: {error}")
        else:
            for each in made:
                run.folder.append("scores", each.as_record())

    def _leave_out(self, folder: RunFolder, name: str, reason: str) -> None:
        if "pip install" in reason:  # it is missing today, and the run is not to blame
            self.notes.append(f"{name} is left out: {reason}")
        else:
            folder.write_json("left-out", {"metrics": {**left_out(folder), name: reason}})


def refuse_if_stopped(stop: Stop) -> None:
    """`Interrupted`, if somebody has asked to stop."""
    if stop.asked:
        raise Interrupted("Stopped between two scores; nothing is lost.")


def evaluations(runs: Sequence[Run]) -> list[Evaluation]:
    """The models of a group on their common held-out rows, or on everything where nothing was held out."""
    first = runs[0]
    contents = {run.folder.read_json("data").get("content") for run in runs}
    if len(contents) != 1:
        raise RunError(f"{first.path.parent} holds runs of one group that were trained on different data.")
    rows = split(first.dataset, first.config.training.split).held_out
    made = [Evaluation(run.model, first.dataset, rows) for run in runs]
    _encode(made)
    return made


def _encode(made: list[Evaluation]) -> None:
    """Encode models in one pass, or in as few as the memory allows; one alone is encoded when it is needed."""
    if len(made) < 2:
        return
    try:
        encode_together(made)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    free_memory()
    half = len(made) // 2
    _encode(made[:half])
    _encode(made[half:])


def _evaluate(evaluation: Evaluation, name: str, encoded: Sequence[Evaluation]) -> list[Score]:
    """A metric's scores; where memory is full, once more with the codes of all other members given up."""
    try:
        return evaluate(evaluation, [name])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    for each in encoded:
        each.forget()
    free_memory()
    try:
        return evaluate(evaluation, [name])
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        told = f"{name} does not fit in memory, even for one model alone; leave it out with --metric."
        raise RunError(told) from error


def missing_scores(folder: RunFolder, metrics: Sequence[str]) -> list[str]:
    """Metrics that a run has no score of, less those that it does not allow."""
    scores = [Score.from_record(line) for line in folder.lines("scores")]
    there = {f"{score.metric}/{score.protocol}" for score in scores if score.usual}
    there |= left_out(folder).keys()
    return [name for name in metrics if name not in there]


def left_out(folder: RunFolder) -> dict[str, str]:
    """Metrics that a run does not allow, and why."""
    return dict(folder.read_json("left-out").get("metrics", {}))
