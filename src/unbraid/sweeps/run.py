"""Run a sweep: plan it, train its groups here or elsewhere, and keep its tables up to date."""

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unbraid.config import Config
from unbraid.data.find import GIVEN, Data
from unbraid.errors import MissingExtraError, RunError, UsageError
from unbraid.latents import Space
from unbraid.metrics.base import expand
from unbraid.progress import Progress, progress
from unbraid.run import Run
from unbraid.scoring import choose_default_metrics, find_missing_metrics
from unbraid.store import check_folder_name
from unbraid.sweeps.expand import MemberPlan, build_configs, read_axes
from unbraid.sweeps.folder import SweepFolder
from unbraid.sweeps.messages import describe_left_out, describe_plan, log
from unbraid.sweeps.plan import SweepPlan
from unbraid.sweeps.results import Sweep
from unbraid.sweeps.sources import Sources
from unbraid.sweeps.stages import record_code_change
from unbraid.sweeps.worker import run_group
from unbraid.training import Cadence, choose_device
from unbraid.training.distributed import read_launcher
from unbraid.training.first_stage import copy_first_stage_weights
from unbraid.training.grouping import MAX_MEMBERS, find_max_members, group_by_structure, split_evenly, structure_key
from unbraid.training.interrupt import catch_interrupts, explain_how_to_continue, interrupt_on_sigterm
from unbraid.training.launch import GroupJob, JobOutcome, check_place, connect_to_ray, count_workers, launch
from unbraid.training.prepare import prepare
from unbraid.training.state import State

MAX_MEMBERS_ELSEWHERE = 64
"""Members of a group on a worker whose memory cannot be measured from here; it halves them if they do not fit."""

MAX_PREPARED = 8
"""Training states that are kept from planning until their groups train, so that they are built once."""


def sweep(
    recipe: str | Sequence[str],
    *,
    data: Data | list[str] | None = None,
    refines: Run | str | Path | Sequence[Run | str | Path] | None = None,
    device: str = "auto",
    root: str | Path = "runs",
    name: str | None = None,
    on: str = "local",
    members: int | None = None,
    metrics: Sequence[str] | None = None,
    slurm: Mapping[str, Any] | None = None,
    many: bool = False,
    report: bool = True,
    cadence: Cadence | None = None,
    **settings: Any,
) -> Sweep:
    """Train every combination of settings, score the runs, and write tables and a report.

    A list, a range or an array is an axis; anything else, a tuple too, is one value: `beta=[1, 4]`, `seed=range(50)`,
    `encoder_hidden=(16, 16)`. `refines` is an axis of finished runs for a recipe that is a second stage (`ms-vae`):
    each member refines one of them, on its data and, unless `seed` is given, with its seed. Runs that share their
    shapes train as one program, as many as fit (`members` at most). `on` is `local`, `ray`, `ray://HOST:PORT` or
    `slurm` (`slurm` holds its options). The sweep lives in `root / name`; calling it again continues it, and longer
    axes extend it. `metrics` are measured on every run: the default ones if it is None, none if it is empty. Without
    `report` it writes no page.
    """
    _check_call(on, members, slurm)
    data = "sprites" if data is None and refines is None else data
    sources = Sources(choose_device(device) if on == "local" else torch.device("cpu"))
    plan = SweepPlan(read_axes(recipe, data, refines, settings, sources), expand(metrics or ()))
    planned = build_configs(plan, sources, many)
    if metrics is None:
        plan = replace(plan, metrics=choose_default_metrics(_space(member.config) for member in planned.values()))
    if on != "local" and any(member.config.data.name == GIVEN for member in planned.values()):
        raise UsageError("Data that are passed in stay in this process; name a data set, or sweep with on='local'.")
    name = name or plan.name
    check_folder_name(name)
    folder = SweepFolder(Path(root) / name)
    folder.check_extends(plan)
    fits, prepared = _rehearse(folder, planned, sources)
    with folder.locked(), connect_to_ray(on):
        _create(folder, plan, planned, sources)
        made = Sweep(folder.path)
        if members is not None and members > MAX_MEMBERS:
            made.notes.append(f"A group has at most {MAX_MEMBERS} members, not {members}.")
        busy = [group for group in folder.list_groups() if folder.is_busy(group)]
        elsewhere = {run for group in busy for run in folder.list_runs(group)}
        configs = {run: member.config for run, member in planned.items() if run not in elsewhere}
        limits = Limits(on, members and min(members, MAX_MEMBERS), fits)
        groups = _plan_groups(folder, configs, limits, cadence, busy)
        if configs:
            log(describe_plan(folder, groups, configs, device if on != "local" else str(sources.device), on))
        where = str(folder.path.resolve())  # workers have working directories of their own
        jobs = [GroupJob(where, group, device, tuple(folder.files_for_worker(group))) for group in groups]
        errors = _run_jobs(made, jobs, on, slurm, sources, prepared)
        _finish(made, planned, sources, report)
        if errors:
            raise RunError(f"{len(errors)} of {len(jobs)} groups failed; the same command tries again. {errors[0]}")
        if busy:
            raise RunError(folder.describe_busy(busy[0]))
    return made


def _check_call(on: str, members: int | None, slurm: Mapping[str, Any] | None) -> None:
    if read_launcher().size > 1:
        raise UsageError("A sweep spreads its runs itself (--on ray, --on slurm); start it without torchrun.")
    check_place(on)
    if slurm and on != "slurm":
        raise UsageError(f"Slurm's options ({', '.join(slurm)}) go with --on slurm, not with --on {on}.")
    if members is not None and members < 1:
        raise UsageError(f"A group has at least 1 member, not {members}.")


def _space(config: Config) -> Space:
    return Space.from_config(config.latents, config.groups, config.prior)


def _rehearse(
    folder: SweepFolder, planned: Mapping[str, MemberPlan], sources: Sources
) -> tuple[dict[str, int], dict[str, State]]:
    """Try a step of each structure that has runs to train, so that what cannot be trained leaves no folder behind.

    Returns how many members of each structure fit in memory, and training states by run id.
    """
    fits: dict[str, int] = {}
    prepared: dict[str, State] = {}
    waiting = [member.config for run, member in planned.items() if not folder.run_folder(run).ended]
    for group in group_by_structure(waiting):
        config = group[0]
        settings = planned[config.run_id].settings
        first_weights = [sources.first_stage(settings["refines"]).weights] if "refines" in settings else ()
        state = prepare(config, sources.dataset(config.data), first_weights=first_weights)
        fits[structure_key(config)] = find_max_members(state)
        if len(prepared) < MAX_PREPARED:
            prepared[config.run_id] = state
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
    """How many members a group may have: `members` if given, else as many as fit, by structure."""

    on: str
    members: int | None
    fits: Mapping[str, int]

    def of(self, group: Sequence[Config], waiting: int) -> int:
        """Return the limit for a group, when so many runs wait in all."""
        if self.members is not None:
            return self.members
        if self.on == "local":
            return self.fits.get(structure_key(group[0]), MAX_MEMBERS_ELSEWHERE)
        return max(1, min(MAX_MEMBERS_ELSEWHERE, -(-waiting // count_workers(self.on))))  # every worker gets something


def _plan_groups(
    folder: SweepFolder,
    configs: Mapping[str, Config],
    limits: Limits,
    cadence: Cadence | None,
    busy: Sequence[str],
) -> list[str]:
    """Return the groups to run: unfinished ones first, unchanged, then new ones.

    Groups that another process is running are skipped: a cluster goes on without the process that started its jobs.
    """
    for group in busy:
        log(folder.describe_busy(group))
    free = [group for group in folder.list_groups() if group not in busy]
    begun = [group for group in free if folder.group_folder(group).checkpoints()]
    for group in set(free) - set(begun):
        folder.remove_group(group)
    taken = {run for group in begun for run in folder.list_runs(group)}
    metrics = folder.plan.metrics
    rest = {run: config for run, config in configs.items() if run not in taken}
    waiting = [config for run, config in rest.items() if not folder.run_folder(run).ended]
    unscored = [
        c
        for run, c in rest.items()
        if folder.run_folder(run).finished and find_missing_metrics(folder.run_folder(run), metrics)
    ]
    parts: list[list[Config]] = []
    for group in group_by_structure(waiting):
        parts += split_evenly([group], limits.of(group, len(waiting)))
    parts += split_evenly(group_by_structure(unscored), limits.members or MAX_MEMBERS_ELSEWHERE)
    return begun + [folder.add_group([config.run_id for config in part], cadence) for part in parts]


def _run_jobs(
    made: Sweep,
    jobs: list[GroupJob],
    on: str,
    slurm: Mapping[str, Any] | None,
    sources: Sources,
    prepared: dict[str, State],
) -> list[str]:
    """Run the jobs, rewrite the tables after each one, and return the errors of those that failed."""
    errors: list[str] = []
    known = made.left_out()
    with explain_how_to_continue(made.path), catch_interrupts() if on == "local" else interrupt_on_sigterm() as stop:
        local = functools.partial(run_group, sources=sources, prepared=prepared, stop=stop)
        try:
            outcomes = launch(local if on == "local" else run_group, jobs, on, slurm)
            with closing(outcomes), _groups_bar(len(jobs), on) as bar:
                for number, outcome in enumerate(outcomes, start=1):
                    _record_outcome(made, outcome, errors)
                    bar.advance()
                    log(f"{number} of {len(jobs)} groups {'done' if outcome.error is None else 'ended'}")
        finally:
            made.write_tables()
    made.notes += describe_left_out(known, made.left_out())
    return errors


def _groups_bar(groups: int, on: str) -> AbstractContextManager[Progress]:
    """Return a bar over groups that train elsewhere; groups that train here draw their own bar over steps."""
    return progress("groups", groups, delay=2.0 if on != "local" else math.inf)


def _record_outcome(made: Sweep, outcome: JobOutcome, errors: list[str]) -> None:
    made.notes += [note for note in outcome.notes if note not in made.notes]
    if outcome.error is None:
        made.folder.remove_group(outcome.job.group)
    else:
        errors.append(outcome.error)
        log(f"group {outcome.job.group} failed: {outcome.error}")
    made.write_tables()


def _finish(made: Sweep, planned: Mapping[str, MemberPlan], sources: Sources, report: bool) -> None:
    """Compare the codes of refined runs with those of their first stages, note divergences, write the page."""
    for run, member in planned.items():
        folder = made.folder.run_folder(run)
        if "refines" in member.settings and folder.finished:
            first = sources.first_stage(member.settings["refines"])
            record_code_change(first, folder, sources.dataset(member.config.data))
    diverged = sum(member.state == "diverged" for member in made.members)
    if diverged:
        made.notes.append(f"{diverged} of {len(made)} members diverged; they are not trained again (see table.csv).")
    try:
        if report:
            made.report()
    except MissingExtraError as error:  # a missing optional dependency must not fail the sweep
        made.notes.append(f"report.html is left out: {error}")
