"""One group of a sweep: trained, scored, and taken off the list."""

import functools
import gc
from collections.abc import Sequence

import torch

from unbraid.api import Run
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.sampling import split
from unbraid.errors import DataError, RunError, UsageError
from unbraid.metrics.base import Evaluation, encode_together, evaluate
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.sources import Sources
from unbraid.sweeps.telling import say
from unbraid.training import Cadence, choose_device, train_group


@functools.lru_cache(maxsize=1)
def _sources_of_worker(device: str) -> Sources:
    """A worker's data sets: it may do several groups of one sweep."""
    return Sources(choose_device(device))


def work(folder: str, group: str, device: str = "auto", sources: Sources | None = None) -> list[str]:
    """Train and score one group of a sweep, resuming where it stands; returns notes for the user."""
    led = SweepFolder(folder)
    if group not in led.groups():
        return []  # an earlier try did it and died before it could say so
    if led.parts_of(group):
        return _work_on_parts(led, group, device, sources)
    runs, cadence = led.runs_of(group), led.cadence_of(group)
    folders = [led.run(run) for run in runs]
    configs = [each.config for each in folders]
    dataset = (sources or _sources_of_worker(device)).of(configs[0].data)
    trained = all(map(led.ended, runs)) or _train(led.group(group), folders, configs, dataset, cadence)
    if not trained:
        return [_halve(led, group), *_work_on_parts(led, group, device, sources)]
    notes = score([Run(each, dataset=dataset) for each in folders if each.finished], led.statement.metrics)
    led.remove_group(group)
    return notes


def _train(
    group: RunFolder, folders: list[RunFolder], configs: list[Config], dataset: FactorDataset, cadence: Cadence
) -> bool:
    """Train a group; false where it does not fit in memory."""
    try:
        train_group(group, folders, configs, dataset, cadence)
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        gc.collect()  # the state hangs in reference cycles, and the next group needs its memory
    return True


def _halve(led: SweepFolder, group: str) -> str:
    """Divide a group that is too large for the memory; returns a note about it."""
    gc.collect()  # the failed step's tensors hang in reference cycles
    torch.cuda.empty_cache()
    runs = led.runs_of(group)
    if len(runs) == 1:
        raise RunError(f"{runs[0]} alone does not fit in the memory of the device; try a smaller batch.")
    half = (len(runs) + 1) // 2
    led.divide(group, [runs[:half], runs[half:]])
    told = f"{len(runs)} members did not fit in memory; they are trained as {half} and {len(runs) - half}, from step 0."
    say(told)
    return told


def _work_on_parts(led: SweepFolder, group: str, device: str, sources: Sources | None) -> list[str]:
    notes = [note for part in led.parts_of(group) for note in work(str(led.path), part, device, sources)]
    led.remove_group(group)
    return notes


def score(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    """Measure what is missing on runs of one group and append it to their scores; returns what was left out and why."""
    runs = [run for run in runs if missing_scores(run.folder, metrics)]
    notes: dict[str, None] = {}
    for run, evaluation in zip(runs, evaluations(runs) if runs else (), strict=True):
        left_out = dict(run.folder.read_json("left-out").get("metrics", {}))
        for name in missing_scores(run.folder, metrics):
            try:
                made = evaluate(evaluation, [name])
            except (DataError, UsageError) as error:
                left_out[name] = str(error)
                notes[f"{name} is left out: {error}"] = None
                continue
            for each in made:
                run.folder.append("scores", each.as_record())
        if left_out:
            run.folder.write_json("left-out", {"metrics": left_out})
    return list(notes)


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
    except torch.cuda.OutOfMemoryError:
        half = len(made) // 2
    else:
        return
    torch.cuda.empty_cache()
    _encode(made[:half])
    _encode(made[half:])


def missing_scores(folder: RunFolder, metrics: Sequence[str]) -> list[str]:
    """Metrics that a run has no score of, less those that its data do not allow."""
    there = {f"{line['metric']}/{line['protocol']}" for line in folder.lines("scores")}
    there |= folder.read_json("left-out").get("metrics", {}).keys()
    return [name for name in metrics if name not in there]
