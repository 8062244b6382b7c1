"""Run a sweep: plan it, launch its groups, and keep its tables up to date."""

import functools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unbraid.config import Config
from unbraid.data.find import GIVEN, Data
from unbraid.errors import MissingExtraError, RunError, UsageError
from unbraid.folder_names import check_folder_name, to_path
from unbraid.invocation import choose_wording
from unbraid.latents import Space
from unbraid.metrics.base import expand
from unbraid.printable import pluralise
from unbraid.progress import announce, format_seconds, progress
from unbraid.run import Run
from unbraid.scoring import choose_default_metrics, find_missing_metrics
from unbraid.sweeps.expand import MemberPlan, build_configs, read_axes
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.missing_data import name_member_without_data
from unbraid.sweeps.plan import SweepPlan
from unbraid.sweeps.results import Sweep
from unbraid.sweeps.sources import Sources
from unbraid.sweeps.stages import record_code_change
from unbraid.sweeps.worker import run_group
from unbraid.training import Cadence, choose_device
from unbraid.training.distributed import read_launcher
from unbraid.training.first_stage import copy_first_stage_weights
from unbraid.training.grouping import (
    MAX_MEMBERS,
    find_max_members,
    group_by_structure,
    parameter_bytes,
    split_evenly,
    structure_key,
)
from unbraid.training.interrupt import catch_interrupts, explain_how_to_continue, interrupt_on_signals
from unbraid.training.launch import GroupJob, JobOutcome, check_place, connect_to_ray, count_workers, launch
from unbraid.training.prepare import prepare
from unbraid.training.resources import Runs, check_disk
from unbraid.training.state import State

MAX_MEMBERS_ON_WORKERS = 64
"""The memory of workers is unknown here; a worker halves a group that does not fit."""

MAX_PREPARED_STATES = 8
"""States that planning builds and keeps in memory until their groups train."""

MAX_SHARE_OF_TABLES = 0.05
"""Share of the time of a sweep that goes into tables; each of them reads every run."""


def sweep(
    recipe: str | Sequence[str],
    *,
    data: Data | list[str] | None = None,
    refines: Run | str | Path | Sequence[Run | str | Path] | None = None,
    device: str | torch.device = "auto",
    root: str | bytes | Path = "runs",
    name: str | None = None,
    on: str = "local",
    members: int | None = None,
    metrics: Sequence[str] | None = None,
    slurm: Mapping[str, Any] | None = None,
    many: bool = False,
    report: bool = True,
    cadence: Cadence | None = None,
    track: str | Sequence[str] = (),
    **settings: Any,
) -> Sweep:
    """Train every combination of settings, score the runs, and write tables and a report.

    A list, a range or an array is an axis: `beta=[1, 4]`, `seed=range(50)`. Anything else, also a tuple, is one value:
    `encoder_hidden=(16, 16)`. `refines` is an axis of finished runs for a second stage (`ms-vae`): each member refines
    one of them, on its data and, unless `seed` is given, with its seed. Runs of one structure train as one program, as
    many as fit in memory and at most `members`. `on` is `local`, `ray`, `ray://HOST:PORT` or `slurm`, with the options
    `slurm`. The sweep is in `root / name`; a second call continues it, and longer axes extend it. `metrics` are
    measured on every run: None means the default ones, an empty list none. `track` names trackers of every run's
    history (`tensorboard`, `wandb`, `mlflow`).
    """
    cadence, device, root = Cadence.of(cadence, track), str(device), to_path(root, "root")
    _check_call(on, members, slurm)
    data = "sprites" if data is None and refines is None else data
    sources = Sources(choose_device(device) if on == "local" else torch.device("cpu"))
    plan = SweepPlan(read_axes(recipe, data, refines, settings, sources), expand(metrics or ()))
    paths = [value for key, axis in plan.values.items() if key.partition(".")[0] == "data" for value in axis]
    with name_member_without_data(root, name, paths):
        planned = build_configs(plan, sources, many)
    if metrics is None:
        configs = [member.config for member in planned.values()]
        spaces = [Space.from_config(config.latents, config.groups, config.prior) for config in configs]
        plan = replace(plan, metrics=choose_default_metrics(spaces))
    if on != "local" and any(member.config.data.name == GIVEN for member in planned.values()):
        raise UsageError("Workers cannot see data that are passed in; name a data set, or sweep with on='local'.")
    name = name or plan.name
    check_folder_name(name)
    folder = SweepFolder(root / name)
    folder.check_extends(plan)
    fits, prepared = _rehearse(folder, planned, sources)
    with folder.locked(), connect_to_ray(on):
        _create(folder, plan, planned, sources)
        result = Sweep(folder.path)
        if members is not None and members > MAX_MEMBERS:
            result.notes.append(f"A group has at most {MAX_MEMBERS} members, not {members}.")
        busy = [group for group in folder.list_groups() if folder.is_busy(group)]
        running = {run for group in busy for run in folder.list_runs(group)}
        configs = {run: member.config for run, member in planned.items() if run not in running}
        limits = Limits(on, members and min(members, MAX_MEMBERS), fits)
        groups = _plan_groups(folder, configs, limits, cadence, busy)
        if configs:
            announce(describe_plan(folder, groups, configs, device if on != "local" else str(sources.device), on))
        path = str(folder.path.resolve())  # workers have other working directories
        jobs = [GroupJob(path, group, device, tuple(folder.files_for_worker(group))) for group in groups]
        errors = _run_jobs(result, jobs, on, slurm, sources, prepared)
        _finish(result, planned, sources, report)
        if errors:
            raise RunError(f"{len(errors)} of {len(jobs)} groups failed; {_advise(errors[0])}. {errors[0]}")
        if busy:
            raise RunError(folder.describe_busy(busy[0]))
    return result


def _check_call(on: str, members: int | None, slurm: Mapping[str, Any] | None) -> None:
    if read_launcher().size > 1:
        raise UsageError("A sweep starts its own workers (--on ray, --on slurm); start it without torchrun.")
    check_place(on)
    if slurm and on != "slurm":
        raise UsageError(f"Slurm's options ({', '.join(slurm)}) go with --on slurm, not with --on {on}.")
    if members is not None and members < 1:
        raise UsageError(f"A group has at least 1 member, not {members}.")


def _rehearse(
    folder: SweepFolder, planned: Mapping[str, MemberPlan], sources: Sources
) -> tuple[dict[str, int], dict[str, State]]:
    """Rehearse a step of each structure before any folder is created, and check that their files fit on the disk.

    Returns how many members of each structure fit in memory, and training states by run id.
    """
    fits: dict[str, int] = {}
    prepared: dict[str, State] = {}
    stored: list[Runs] = []
    waiting = [member.config for run, member in planned.items() if not folder.run_folder(run).ended]
    for group in group_by_structure(waiting):
        config = group[0]
        settings = planned[config.run_id].settings
        first_weights = [sources.first_stage(settings["refines"]).weights] if "refines" in settings else ()
        state = prepare(config, sources.dataset(config.data), first_weights=first_weights)
        fits[structure_key(config)] = at_once = find_max_members(state)
        stored.append(Runs(parameter_bytes(state), len(group), min(len(group), at_once)))
        if len(prepared) < MAX_PREPARED_STATES:
            prepared[config.run_id] = state
    check_disk(stored, folder.path)
    return fits, prepared


def _create(folder: SweepFolder, plan: SweepPlan, planned: Mapping[str, MemberPlan], sources: Sources) -> None:
    """Write the sweep's files and the folders of its runs, each with the weights of its first stage."""
    folder.add(plan, {run: member.settings for run, member in planned.items()})
    for member in planned.values():
        run = folder.create_run(member.config)
        if "refines" in member.settings:
            copy_first_stage_weights(sources.first_stage(member.settings["refines"]).folder, run)


@dataclass(frozen=True)
class Limits:
    """The largest size of a group: `members` if given, else the number that fits, by structure."""

    on: str
    members: int | None
    fits: Mapping[str, int]

    def of(self, group: Sequence[Config], waiting: int) -> int:
        """Return the limit for a group if `waiting` runs are to be trained in all."""
        if self.members is not None:
            return self.members
        if self.on == "local":
            return self.fits.get(structure_key(group[0]), MAX_MEMBERS_ON_WORKERS)
        return max(1, min(MAX_MEMBERS_ON_WORKERS, -(-waiting // count_workers(self.on))))  # every worker gets a group


def _plan_groups(
    folder: SweepFolder, configs: Mapping[str, Config], limits: Limits, cadence: Cadence | None, busy: Sequence[str]
) -> list[str]:
    """Return the groups to run: unfinished ones first, unchanged, then new ones.

    Groups that another process is running are skipped: cluster jobs continue without the process that started them.
    """
    for group in busy:
        announce(folder.describe_busy(group))
    free = [group for group in folder.list_groups() if group not in busy]
    begun = [group for group in free if folder.group_folder(group).checkpoints() or _is_partly_ended(folder, group)]
    for group in set(free) - set(begun):
        folder.remove_group(group)
    for group in begun:
        removed = [run for run in folder.list_runs(group) if not folder.run_folder(run).read_json("status")]
        if removed:
            announce(f"{removed[0]} was removed; the runs of its group train again from step 0, with the same result.")
            folder.forget_checkpoints(group)
    taken = {run for group in begun for run in folder.list_runs(group)}
    metrics = folder.plan.metrics
    rest = {run: config for run, config in configs.items() if run not in taken}
    waiting = [config for run, config in rest.items() if not folder.run_folder(run).ended]
    finished = {run: config for run, config in rest.items() if folder.run_folder(run).finished}
    unscored = [config for run, config in finished.items() if find_missing_metrics(folder.run_folder(run), metrics)]
    parts: list[list[Config]] = []
    for group in group_by_structure(waiting):
        parts += split_evenly([group], limits.of(group, len(waiting)))
    parts += split_evenly(group_by_structure(unscored), limits.members or MAX_MEMBERS_ON_WORKERS)
    return begun + [folder.add_group([config.run_id for config in part], cadence) for part in parts]


def _is_partly_ended(folder: SweepFolder, group: str) -> bool:
    """Return whether some members have ended and others not: the others alone would be rounded differently."""
    return len({folder.run_folder(run).ended for run in folder.list_runs(group)}) > 1


def _run_jobs(
    result: Sweep,
    jobs: list[GroupJob],
    on: str,
    slurm: Mapping[str, Any] | None,
    sources: Sources,
    prepared: dict[str, State],
) -> list[str]:
    """Run the jobs, keep the tables up to date, and return the errors of those that failed."""
    errors: list[str] = []
    tables_due, began = 0.0, time.monotonic()
    known = result.left_out()
    with explain_how_to_continue(result.path), catch_interrupts() if on == "local" else interrupt_on_signals() as stop:
        local = functools.partial(run_group, sources=sources, prepared=prepared, stop=stop)
        try:
            outcomes = launch(local if on == "local" else run_group, jobs, on, slurm)
            delay = 2.0 if on != "local" else math.inf  # a group in this process draws its own bar
            with closing(outcomes), progress("groups", len(jobs), delay) as bar:
                for number, outcome in enumerate(outcomes, start=1):
                    _record_outcome(result, outcome, errors)
                    if time.monotonic() >= tables_due:
                        tables_due = _write_tables(result)
                    bar.advance()
                    ended = f"ended, {len(errors)} of them failed" if errors else "done"
                    left = (time.monotonic() - began) / number * (len(jobs) - number)
                    rest = f"; about {format_seconds(left)} left" if number < len(jobs) else ""
                    announce(f"{number} of {len(jobs)} groups {ended}{rest}")
        finally:
            result.write_tables()
    result.notes += describe_left_out(known, result.left_out())
    return errors


def _record_outcome(result: Sweep, outcome: JobOutcome, errors: list[str]) -> None:
    result.notes += [note for note in outcome.notes if note not in result.notes]
    if outcome.error is None:
        result.folder.remove_group(outcome.job.group)
    else:
        errors.append(outcome.error)
        announce(f"group {outcome.job.group} failed: {outcome.error}")


def _write_tables(result: Sweep) -> float:
    """Write the tables and return the time at which they may be written again."""
    began = time.monotonic()
    result.write_tables()
    ended = time.monotonic()
    return ended + (ended - began) / MAX_SHARE_OF_TABLES


def _advise(error: object) -> str:
    """Return what to do after a group has failed."""
    if "vmap" in str(error):  # torch's word for what stacks members
        alone = choose_wording("--members 1", "members=1")
        return f"their networks cannot train as one program; {alone} trains one run after the other"
    return "the same command tries again"


def _finish(result: Sweep, planned: Mapping[str, MemberPlan], sources: Sources, report: bool) -> None:
    """Compare the codes of refined runs with those of their first stages, note divergences, write the report."""
    for run, member in planned.items():
        folder = result.folder.run_folder(run)
        if "refines" in member.settings and folder.finished:
            first = sources.first_stage(member.settings["refines"])
            record_code_change(first, folder, sources.dataset(member.config.data))
    diverged = sum(result.folder.run_folder(run).status["state"] == "diverged" for run in result.folder.members)
    if diverged:
        note = f"{diverged} of {len(result)} members diverged; they are not trained again (see table.csv)."
        result.notes.append(note)
    try:
        if report:
            result.report()
    except MissingExtraError as error:  # a missing optional dependency must not fail the sweep
        result.notes.append(f"report.html is left out: {error}")


def describe_plan(
    folder: SweepFolder, groups: Sequence[str], configs: Mapping[str, Config], device: str, on: str
) -> str:
    """Return e.g. '120 members in 2 groups of 60, 18,000 steps each, on cuda'."""
    sizes = [len(folder.list_runs(group)) for group in groups]
    if not sizes:
        return f"{pluralise(len(configs), 'member')} {'is' if len(configs) == 1 else 'are'} finished already."
    lengths = [config.training.steps for config in configs.values()]
    where = f"on {device}" if on == "local" else f"through {on}"
    done = len(configs) - sum(sizes)
    reused = f" ({done:,} more {'is' if done == 1 else 'are'} finished already)" if done > 0 else ""
    parts = f"{pluralise(sum(sizes), 'member')} in {pluralise(len(sizes), 'group')} of {_span(sizes)}"
    return f"{parts}, {_span(lengths)} steps each, {where}{reused}"


def describe_left_out(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a note per metric that is newly left out: for how many members, and the reason for the first one."""
    reasons: dict[str, list[str]] = {}
    for run, metrics in now.items():
        for metric in metrics.keys() - before.get(run, {}).keys():
            reasons.setdefault(metric, []).append(metrics[metric])
    members = pluralise(len(now), "member")
    return [f"{metric} is left out for {len(why)} of {members}: {why[0]}" for metric, why in sorted(reasons.items())]


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
