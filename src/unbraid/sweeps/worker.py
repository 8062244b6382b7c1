"""Train and score one group; single runs and the runs of sweeps all take this path."""

import functools
import gc
from collections.abc import Sequence

from unbraid.data.factors import FactorDataset
from unbraid.data.find import GIVEN
from unbraid.errors import RunError
from unbraid.memory import is_out_of_memory
from unbraid.plugins import load_files
from unbraid.progress import announce
from unbraid.run import Run
from unbraid.scoring import (
    Job,
    Result,
    assign_settings,
    check_not_stopped,
    find_missing_metrics,
    list_notes,
    score_subjects,
)
from unbraid.scoring_pool import need_processes, score_in_processes
from unbraid.store import RunFolder
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.sources import Sources
from unbraid.training import GroupFolders, choose_device, train_group
from unbraid.training.distributed import World
from unbraid.training.execution import choose_execution
from unbraid.training.first_stage import load_first_stages
from unbraid.training.interrupt import Stop
from unbraid.training.memory import free_memory
from unbraid.training.prepare import prepare
from unbraid.training.state import State
from unbraid.types import NO_MODULES, Modules


class GroupTooLargeError(RunError):
    """The runs of a group do not fit in the memory of the device."""


def train_and_score(
    group: GroupFolders,
    dataset: FactorDataset,
    metrics: Sequence[str] = (),
    *,
    stop: Stop | None = None,
    world: World | None = None,
    state: State | None = None,
    modules: Modules = NO_MODULES,
) -> list[str]:
    """Train the runs of a group that have not ended, measure missing metrics, and return notes.

    `state` is the training state of the group, or of its first run, if it has been prepared already. `stop` is checked
    between two scores; training catches signals itself.
    """
    if not all(run.ended for run in group.runs):
        _train(group, dataset, world, state, modules)
    unscored = [run for run in group.runs if run.finished and find_missing_metrics(run, metrics)]
    if not unscored:
        return []
    with group.checkpoints.locked():  # training has released its lock
        return _score(unscored, dataset, metrics, stop)


def _train(
    group: GroupFolders, dataset: FactorDataset, world: World | None, state: State | None, modules: Modules
) -> None:
    configs = [run.config for run in group.runs]
    try:
        if state is not None and len(configs) > 1:
            first_weights = load_first_stages(group.runs, configs)
            state = prepare(configs, dataset, first_weights=first_weights, built=state.group.skeleton)
        train_group(group, dataset, world, state, modules)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        runs = f"{configs[0].run_id} does" if len(configs) == 1 else f"{len(configs)} runs do"
        raise GroupTooLargeError(f"{runs} not fit in the memory of the device; try a smaller batch.") from error
    finally:
        state = None
        if choose_execution(dataset.device, configs[0].training.steps) != "plain":
            gc.collect()  # the compiler refers to a state in cycles, and the next group needs the memory


def _score(runs: Sequence[RunFolder], dataset: FactorDataset, metrics: Sequence[str], stop: Stop | None) -> list[str]:
    """Measure the metrics that runs lack, in processes if there is much to do, and return notes."""
    requests = [assign_settings(find_missing_metrics(run, metrics), {}) for run in runs]
    results: list[Result] = []
    if runs[0].config.data.name != GIVEN and need_processes(dataset.device, requests):
        free_memory()  # of the training, for the processes
        jobs = [Job(run.path, run.root, (own,), missing_only=True) for run, own in zip(runs, requests, strict=True)]
        found = list(score_in_processes(jobs, dataset.device, stop))
        results = [result for each in found for result in each or ()]
        runs = [run for run, each in zip(runs, found, strict=True) if each is None]
    failures, subjects = [], []
    for run in runs:
        try:
            subjects.append(Run(run, dataset=dataset).subject())
        except RunError as error:  # the other runs still get their scores
            failures.append(str(error))
    results += score_subjects(subjects, metrics, missing_only=True, stop=stop)
    return list_notes(results, failures)


@functools.lru_cache(maxsize=1)
def _sources_of_worker(device: str) -> Sources:
    """Return the data sets that the groups of one worker share."""
    return Sources(choose_device(device))


def run_group(
    folder: str,
    group: str,
    device: str = "auto",
    sources: Sources | None = None,
    prepared: dict[str, State] | None = None,
    stop: Stop | None = None,
) -> list[str]:
    """Train and score one group of a sweep from its last checkpoint, and return notes for the user.

    `prepared` holds training states by run id; the group removes the one of its first run.
    """
    check_not_stopped(stop)
    load_files(())  # those that the environment names
    sweep = SweepFolder(folder)
    if group not in sweep.list_groups():
        return []  # an earlier attempt finished the group and died before it could report
    if sweep.is_busy(group):
        raise RunError(sweep.describe_busy(group))
    notes: list[str] = []
    if not sweep.list_parts(group):
        runs = [sweep.run_folder(run) for run in sweep.list_runs(group)]
        for run in sweep.list_runs(group):
            sweep.check_id(run)
        dataset = (sources or _sources_of_worker(device)).dataset(runs[0].config.data, runs[0])
        state = (prepared or {}).pop(runs[0].path.name, None)
        values = sweep.describe_values(sweep.list_runs(group))
        folders = GroupFolders(sweep.group_folder(group), runs, sweep.read_cadence(group), values)
        try:
            notes = train_and_score(folders, dataset, sweep.plan.metrics, stop=stop, state=state)
        except GroupTooLargeError:
            if len(runs) == 1:
                raise
            notes = [_halve(sweep, group)]
    for part in sweep.list_parts(group):
        notes += run_group(folder, part, device, sources, prepared, stop)
    sweep.remove_group(group)
    return notes


def _halve(sweep: SweepFolder, group: str) -> str:
    """Divide a group that does not fit in memory, and return a note about it."""
    free_memory()
    runs = sweep.list_runs(group)
    half = (len(runs) + 1) // 2
    sweep.divide(group, [runs[:half], runs[half:]])
    note = f"{len(runs)} members did not fit in memory; they train as {half} and {len(runs) - half}, from step 0."
    announce(note)
    return note
