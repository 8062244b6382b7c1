"""Plan a sweep, have its groups trained wherever that is to be, and keep its tables up to date."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unbraid.api import GIVEN, Data
from unbraid.config import Config
from unbraid.errors import RunError, UsageError
from unbraid.latents import Space
from unbraid.metrics.base import expand
from unbraid.progress import Progress, progress
from unbraid.store import folder_name
from unbraid.sweeps.expand import configured, values_of_settings
from unbraid.sweeps.folder import Statement, SweepFolder
from unbraid.sweeps.messages import left_out_in_words, plan_in_words, say
from unbraid.sweeps.results import Sweep
from unbraid.sweeps.scoring import missing_scores
from unbraid.sweeps.sources import Sources
from unbraid.sweeps.worker import work
from unbraid.training import Cadence, choose_device
from unbraid.training.distributed import launched
from unbraid.training.grouping import MOST, at_most, fitting, plan
from unbraid.training.interrupt import continued_by_the_same_command, stoppable, terminable
from unbraid.training.launch import Job, Outcome, check_place, connected, launch, parallelism
from unbraid.training.loop import rehearse

DEFAULT_METRICS = ("mig", "elbo", "reconstruction/nats", "kl", "mi/exact", "tc/exact")
"""Metrics where none are named; of `elbo` and `kl` the protocol that the latents of all members have."""

MEMBERS_ELSEWHERE = 64
"""Members of a group on a worker whose memory nobody here can measure; it halves them if they do not fit."""


def sweep(
    recipe: str | Sequence[str],
    *,
    data: Data | list[str] = "sprites",
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
    `encoder_hidden=(16, 16)`. Runs that share their shapes train as one program, as many as fit (`members` at most).
    `on` is `local`, `ray`, `ray://HOST:PORT` or `slurm` (whose options `slurm` holds). The sweep lives in
    `root / name`; calling it again continues it, and longer axes extend it. Runs are scored by `metrics`, by the usual
    ones if it is None and by none if it is empty. Without `report` it writes no page.
    """
    _refuse_wrong_call(on, members, slurm)
    sources = Sources(choose_device(device) if on == "local" else torch.device("cpu"))
    statement = Statement(values_of_settings(recipe, data, settings, sources), expand(metrics or ()))
    configs, asked = configured(statement, sources, many)
    if metrics is None:
        statement = replace(statement, metrics=_usual_metrics(configs.values()))
    if on != "local" and any(config.data.name == GIVEN for config in configs.values()):
        raise UsageError("Data that are passed in stay in this process; name a data set, or sweep with on='local'.")
    folder = SweepFolder(Path(root) / folder_name(name or statement.name))
    folder.refuse(statement)
    for group in plan(list(configs.values())):
        rehearse(group[0], sources.of(group[0].data), execution="plain")  # what cannot be trained leaves no folder
    with folder.locked(), connected(on):
        folder.add(statement, asked)
        for config in configs.values():
            folder.create_run(config)
        made = Sweep(folder.path)
        if members is not None and members > MOST:
            made.notes.append(f"A group has at most {MOST} members, not {members}.")
        busy = [group for group in folder.groups() if folder.busy(group)]
        elsewhere = {run for group in busy for run in folder.runs_of(group)}
        own = {run: config for run, config in configs.items() if run not in elsewhere}
        groups = _groups(folder, own, sources, on, members and min(members, MOST), cadence, busy)
        if own:
            say(plan_in_words(folder, groups, own, device if on != "local" else str(sources.device), on))
        where = str(folder.path.resolve())  # workers have working directories of their own
        jobs = [Job(where, group, device, tuple(folder.needs(group))) for group in groups]
        _lead(made, jobs, on, slurm, sources, report)
        if busy:
            raise RunError(folder.busy_in_words(busy[0]))
    return made


def _usual_metrics(configs: Iterable[Config]) -> list[str]:
    """Every member has the bound by one protocol, as others cannot be compared: drawn, if one of them has no other."""
    spaces = [Space.from_config(config.latents, config.groups, config.prior) for config in configs]
    bound = "closed-form" if all(space.closed_form for space in spaces) else "sampled"
    return expand(f"{name}/{bound}" if name in ("elbo", "kl") else name for name in DEFAULT_METRICS)


def _refuse_wrong_call(on: str, members: int | None, slurm: Mapping[str, Any] | None) -> None:
    if launched().size > 1:
        raise UsageError("A sweep spreads its runs itself (--on ray, --on slurm); start it without torchrun.")
    check_place(on)
    if slurm and on != "slurm":
        raise UsageError(f"Slurm's options ({', '.join(slurm)}) go with --on slurm, not with --on {on}.")
    if members is not None and members < 1:
        raise UsageError(f"A group has at least 1 member, not {members}.")


def _groups(
    folder: SweepFolder,
    configs: Mapping[str, Config],
    sources: Sources,
    on: str,
    members: int | None,
    cadence: Cadence | None,
    busy: Sequence[str],
) -> list[str]:
    """What is to be done: groups that were begun, as they were begun, then the rest; `busy` ones are another's."""
    for group in busy:  # left by a leader that died: its jobs on a cluster go on without it
        say(folder.busy_in_words(group))
    free = [group for group in folder.groups() if group not in busy]
    begun = [group for group in free if folder.group(group).checkpoints()]
    for group in set(free) - set(begun):
        folder.remove_group(group)
    taken = {run for group in begun for run in folder.runs_of(group)}
    metrics = folder.statement.metrics
    waiting = [c for run, c in configs.items() if run not in taken and not folder.ended(run)]
    trained = [c for run, c in configs.items() if run not in taken and folder.run(run).finished]
    unscored = [config for config in trained if missing_scores(folder.run(config.run_id), metrics)]
    parts: list[list[Config]] = []
    for group in plan(waiting):
        if on == "local":
            most = members or fitting(group, sources.of(group[0].data))
        else:  # every worker gets something to do
            most = members or max(1, min(MEMBERS_ELSEWHERE, -(-len(waiting) // parallelism(on))))
        parts += at_most([group], most)
    parts += at_most(plan(unscored), members or MEMBERS_ELSEWHERE)
    return begun + [folder.add_group([config.run_id for config in part], cadence) for part in parts]


def _lead(
    made: Sweep, jobs: list[Job], on: str, slurm: Mapping[str, Any] | None, sources: Sources, report: bool
) -> None:
    """Have the jobs done and write the tables after each of them."""
    errors: list[str] = []
    known = made.left_out()
    with continued_by_the_same_command(made.path), stoppable() if on == "local" else terminable() as stop:
        doing = functools.partial(work, sources=sources, stop=stop) if on == "local" else work
        try:
            with closing(launch(doing, jobs, on, slurm)) as outcomes, _groups_bar(len(jobs), on) as bar:
                for number, outcome in enumerate(outcomes, start=1):
                    _ended(made, outcome, errors)
                    bar.advance()
                    say(f"{number} of {len(jobs)} groups done")
        finally:
            made.write_tables()
    made.notes += left_out_in_words(known, made.left_out())
    diverged = sum(member.state == "diverged" for member in made.members)
    if diverged:
        made.notes.append(f"{diverged} of {len(made)} members diverged; they are not trained again (see table.csv).")
    try:
        if report:
            made.report()
    except UsageError as error:  # an extra that is not installed must not fail a sweep
        made.notes.append(f"report.html is left out: {error}")
    if errors:
        raise RunError(f"{len(errors)} of {len(jobs)} groups failed; the same command tries again. {errors[0]}")


def _groups_bar(groups: int, on: str) -> AbstractContextManager[Progress]:
    """A bar over groups where they train elsewhere; here, each of them draws its own over steps."""
    return progress("groups", groups, delay=2.0 if on != "local" else math.inf)


def _ended(made: Sweep, outcome: Outcome, errors: list[str]) -> None:
    made.notes += [note for note in outcome.notes if note not in made.notes]
    if outcome.error is None:
        made.folder.remove_group(outcome.job.group)
    else:
        errors.append(outcome.error)
        say(f"group {outcome.job.group} failed: {outcome.error}")
    made.write_tables()
