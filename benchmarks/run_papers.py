"""Run the papers' experiments on one GPU, those that settle the most claims per minute first.

    python benchmarks/run_papers.py --plan --minutes 30
    UNBRAID_DATA=data-for-papers python benchmarks/run_papers.py --minutes 30 --device cuda

One process trains one sweep after another, each in few large groups, scores its runs there, and prints a table of
verdicts last. Run it alone: with four such processes on one GPU, 10 members of a VAE made 35,000 images per second
instead of 679,000. The same command continues after an interruption: finished runs are reused, and an unfinished sweep
goes on from its last checkpoint. An experiment starts only if its estimate fits the minutes that are left; if it takes
longer, it is stopped when they are over.

On a machine that keeps nothing, results and scores can leave it while it works: `--out` gets each experiment's page as
soon as it is judged, and `--keep FILE` all runs so far without their weights, every 20 seconds. Unpacked, that is a
folder for `--runs`, whose runs are not trained again:

    python benchmarks/run_papers.py daunhawer2019/many --minutes 9 --out $OUT/papers --keep $OUT/runs.tgz --runs earlier

Estimates are images / rate + a time to compile and score. Rates are those measured inside the step, alone on an H200
(`MEASURED`), and a cautious guess for the other networks. Runs that experiments share count once. A claim counts as
open unless `results` has a verdict on it that was measured as the experiment is now (see `benchmarks/verdicts.py`).
One that was left open by its seeds counts only with as many as its effect needs; the plan chooses the number that
settles the most claims per minute, and lists at its end what would stay open. If nothing but seeds is missing, only
the series and settings that the claims read are trained, with further seeds (`10:20 of beta-vae at beta=4,10`), and
`benchmarks/add_seeds.py` adds them to the stored results.

Claims whose estimates had not settled need runs of twice the steps, as their reason says. `--twice` trains those
instead, with as many seeds as their effects need; `benchmarks/judge_again.py NAME --twice FOLDER` adds them to the
results.

Data. On a machine without network, carry a folder with the converted files and name it by UNBRAID_DATA. Make it here:

    for name in mnist fashion-mnist cars3d; do UNBRAID_DATA=data-for-papers unbraid data fetch $name; done

(with `--from PATH` for a copy that you have) and carry `data-for-papers`. Sprites are rendered where they are needed.
Experiments on data that are missing run on their stand-in, which settles nothing; the plan leaves them out unless
`--stand-ins` is given.
"""

import argparse
import json
import math
import os
import signal
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from judge_again import read_results
from verdicts import NOT_RUN, WAITS, Row, find_open_claims

from unbraid.config import Training
from unbraid.data import describe, keep_loaded
from unbraid.errors import UnbraidError, UsageError
from unbraid.experiments import StandIn, experiment, reproduce
from unbraid.experiments.base import AS_LARGE_AS, REFINES, Experiment
from unbraid.experiments.combining import (
    Setting,
    count_seeds,
    drop_unscored,
    find_evidence,
    find_series,
    find_settings,
    identify_setting,
)
from unbraid.experiments.judging import count_confirming_seeds
from unbraid.experiments.writing import read_looks
from unbraid.objectives import objective
from unbraid.report.tables import format_setting, select_finished
from unbraid.training.interrupt import Interrupted

MEASURED = {"mlp-chen": 3_180_000, "conv-locatello": 525_000, "split": 455_000, "wide": 525_000, "conv-chen": 483_000}
MEASURED |= {"mlp-esmaeili-28": 3_770_000, "mlp-esmaeili-64": 1_360_000, "conv-small": 150_000}
MEASURED |= {"conv-daunhawer": 310_000, "ms-vae": 98_000, "ms-code": 72_000, "jacobian-student": 47_000}
MEASURED |= {AS_LARGE_AS: 156_000}
"""Images per second over all members, by encoder or recipe of a stage, alone on an H200: bf16 on sprites and Cars3D,
TF32 on MNIST, pairs for `conv-daunhawer`, rows of three to five modalities for `conv-small`. Those of MLPs after the
first are of 20 and 10 HFVAEs, that of `conv-locatello` of 15 beta-TCVAEs (30 made 624,000, 10 made 444,000).
`conv-daunhawer` has 18 members, `conv-chen` 16, `ms-vae` with 32 channels 30, the student 20, other stages 5;
`ms-code` made 72,000 to 156,000. Models as large as MS-VAE's two stages have 27 members (9 beta-VAEs made 137,000, five
121,000)."""

MEASURED_PLAIN = {"mlp-chen": 3_950_000, "mlp-esmaeili-28": 6_800_000, "conv-locatello": 1_030_000}
"""The same without an estimator: 42 beta-VAEs on sprites; 20 beta-SVAEs on MNIST, where beta-VAEs made 8.3 million and
40 of them 10.2; 20 VAEs on sprites."""

MEASURED_FACTOR_VAE = {"conv-locatello": 381_000, "split": 302_000, "wide": 331_000}
"""The same of 30 FactorVAEs on Cars3D."""

PLAIN_RECIPES = ("vae", "beta-vae", "beta-svae")

DEFAULT_RATE, STAGE_RATE, GAN_RATE, FACTOR_VAE_SHARE = 300_000, 72_000, 60_000, 0.5
FLOW_RATE, FLOW_RATE_F32 = 225_000, 100_000
GANS = ("info-gan", "ms-gan", "cgan")
SECONDS_PER_SWEEP, SECONDS_PER_RUN = 10.0, 1.0
"""Time to prepare a program, and to score a run and its snapshot; a sweep of split2020/fig4 took 18 s in all."""


class Sweep(NamedTuple):
    """One sweep of an experiment: a key that equal sweeps share, and its seconds on one H200."""

    key: str
    seconds: float


class Task(NamedTuple):
    """An experiment, the open claims that it may settle, its sweeps, data that are missing, its seeds and series."""

    name: str
    claims: list[str]
    sweeps: list[Sweep]
    missing: list[str]
    seeds: int | range | None = None
    """None for the scale's own; a range adds to the seeds of stored results."""
    series: tuple[str, ...] = ()
    """Series that get further seeds; none for all of an experiment that runs from its start."""
    only: Mapping[str, Sequence[Any]] | None = None
    """Values of settings that get further seeds; None for all."""

    def minutes(self, done: Iterable[str] = ()) -> float:
        """Return the estimate without the sweeps that other experiments run before."""
        return sum(sweep.seconds for sweep in self.sweeps if sweep.key not in done) / 60


def choose_task(name: str, scale: str, rows: Sequence[Row], absent: set[str], results: Path) -> Task:
    """Return the task that settles the most open claims per minute.

    That is the scale's own runs, more seeds of all series, or, if the claims only lack seeds, further seeds of the
    series that they read.
    """
    judged = {row.claim: row.seeds for row in rows if row.verdict == "inconclusive" and row.status == "current"}
    fresh = [row.claim for row in rows if row.claim not in judged]
    tasks = [build_task(name, scale, fresh, absent)]
    for seeds in sorted({int(needed) for needed in judged.values() if math.isfinite(needed)}):
        enough = [claim for claim, needed in judged.items() if needed <= seeds]
        more = None if fresh else build_addition(name, scale, enough, absent, seeds, results)
        tasks.append(more or build_task(name, scale, fresh + enough, absent, seeds))
    return max(tasks, key=lambda task: len(task.claims) / max(task.minutes(), 0.1))


def build_addition(
    name: str, scale: str, claims: Sequence[str], absent: set[str], seeds: int, results: Path
) -> Task | None:
    """Return the task that gives the settings that some claims read `seeds` seeds in all; None without stored runs.

    A series that has nine tenths of them stays as it is, unless all have.
    """
    path = results / name / "runs.csv"
    if not path.exists():
        return None
    stored, facts = read_results(path, name, scale), experiment[name].facts
    groups = {identify_setting(group.members[0]): group for group in stored.settings}
    read: list[Setting] = []
    counts: dict[str, int] = {}
    for claim in (each for each in facts.claims if each.text in claims):
        scored = Counter(identify_setting(m) for m in select_finished(drop_unscored(claim, stored).members))
        for setting in find_settings(claim, stored):
            series = dict(setting)["recipe"]
            read.append(setting)
            counts[series] = min(scored[setting], counts.get(series, scored[setting]))
    own = tuple(each for each in facts.series if each in counts)  # others are baselines
    lacking = tuple(each for each in own if counts[each] < 0.9 * seeds) or own
    if not own:  # the claim needs the models
        return None
    grown = [setting for setting in read if dict(setting)["recipe"] in lacking]
    first = 1 + max(member.settings["seed"] for setting in grown for member in groups[setting].members)
    more = range(first, first + max(2, seeds - min(counts[each] for each in lacking)))
    only = find_values(facts.with_series(lacking), scale, grown)
    return build_task(name, scale, list(claims), absent, more, lacking, only=only)


def find_values(facts: Experiment, scale: str, settings: Sequence[Setting]) -> dict[str, list[Any]]:
    """Return the values that these settings have, where the series of an experiment sweep over more."""
    found = {}
    sweeps = facts.build_sweeps(scale).values()
    for key in facts.list_axes(scale):
        axes = [list(each[key]) for each in sweeps if isinstance(each.get(key), (list, range))]
        written = {dict(setting).get(key) for setting in settings}
        values = [value for value in axes[0] if str(format_setting(value)) in written] if axes else []
        if key != "seed" and all(axis == axes[0] for axis in axes) and 0 < len(values) < len(axes[0]):
            found[key] = values
    return found


def build_task(
    name: str,
    scale: str,
    claims: list[str],
    absent: set[str],
    seeds: int | range | None = None,
    series: tuple[str, ...] = (),
    only: Mapping[str, Sequence[Any]] | None = None,
    twice: bool = False,
) -> Task:
    """Return the task of an experiment at a scale, or of its runs of twice the steps."""
    facts = experiment[name].facts.with_series(series) if series else experiment[name].facts
    facts = facts.with_values(scale, only or {})
    facts = facts.with_twice_the_steps(scale) if twice else facts
    facts = facts if seeds is None else facts.with_seeds(scale, seeds)
    if facts.measure is not None:
        return Task(name, claims, [Sweep(name, 60.0)], [], seeds)
    sweeps, members, missing = {}, {}, []
    for each, settings in facts.build_sweeps(scale).items():
        axes = [len(value) for key, value in settings.items() if isinstance(value, (list, range))]
        parent = settings.get(REFINES)
        members[each] = prod(axes) * (members[parent] if parent else 1)
        data = settings.get("data")
        wanted = data.wanted if isinstance(data, StandIn) else data
        missing += [wanted] if wanted in absent and wanted not in missing else []
        of_parent = sweeps[parent].key if parent else ""
        key = json.dumps([of_parent, {k: str(format_setting(v)) for k, v in settings.items() if k != REFINES}])
        sweeps[each] = Sweep(key, estimate_seconds(settings, members[each]))
    unique = {sweep.key: sweep for sweep in sweeps.values()}.values()
    return Task(name, claims, list(unique), missing, seeds, series, only)


def estimate_seconds(settings: dict[str, Any], members: int) -> float:
    """Return the seconds of a sweep on one H200."""
    encoder = str(settings.get("encoder") or settings.get("network") or "")
    rate = MEASURED.get(AS_LARGE_AS if AS_LARGE_AS in settings else encoder, DEFAULT_RATE)
    if settings["recipe"] in PLAIN_RECIPES:
        rate = MEASURED_PLAIN.get(encoder, rate)
    if settings["recipe"] == "factor-vae":
        rate = MEASURED_FACTOR_VAE.get(encoder, FACTOR_VAE_SHARE * rate)
    if settings["recipe"] in GANS:
        rate = GAN_RATE
    elif REFINES in settings:
        rate = MEASURED.get(settings["recipe"], STAGE_RATE)
    elif settings["recipe"] == "ms-flow":
        rate = FLOW_RATE if settings.get("precision") == "tf32" else FLOW_RATE_F32
    usual = {"steps": Training.steps, "batch": Training.batch, **objective[settings["recipe"]].facts.defaults}
    images = members * settings.get("steps", usual["steps"]) * settings.get("batch", usual["batch"])
    return images / rate + SECONDS_PER_SWEEP + SECONDS_PER_RUN * members


def order_tasks(tasks: Sequence[Task]) -> list[tuple[Task, float]]:
    """Return tasks with their minutes: always next the one with the most open claims per minute."""
    left, done, order = list(tasks), set[str](), []
    while left:
        best = max(left, key=lambda task: len(task.claims) / max(task.minutes(done), 0.1))
        order.append((best, best.minutes(done)))
        done |= {sweep.key for sweep in best.sweeps}
        left.remove(best)
    return order


def all_run(rows: Sequence[Row]) -> bool:
    """Return whether all claims of an experiment have been judged; otherwise its whole runs come first."""
    return all(row.verdict != NOT_RUN for row in rows)


def build_twice(
    name: str, scale: str, claims: Sequence[str], absent: set[str], results: Path, seeds: int | None = None
) -> Task:
    """Return the task that trains the series of some claims for twice the steps, with as many seeds as effects need."""
    stored = read_results(results / name / "runs.csv", name, scale)
    chosen = [claim for claim in experiment[name].facts.claims if claim.text in claims]
    read = {each for claim in chosen for each in find_series(claim, stored)}
    series = tuple(each for each in experiment[name].facts.series if each in read)
    if seeds is None:
        record = json.loads((results / name / "verdicts.json").read_text("utf-8"))
        stored = replace(stored, looks=read_looks(record, chosen))
        needed = (
            count_confirming_seeds(find_evidence(each, stored), count_seeds(each, stored), stored.looks[each.text])
            for each in chosen
        )
        seeds = max(needed)
    return build_task(name, scale, list(claims), absent, seeds, series, twice=True)


class Plan(NamedTuple):
    """Tasks in order with their minutes, open claims that they would not settle, and tasks whose data are missing."""

    order: list[tuple[Task, float]]
    left: list[Row]
    without_data: list[Task]


def plan_tasks(papers: Sequence[str], scale: str, results: Path, stand_ins: bool, twice: bool = False) -> Plan:
    """Return what is worth running, in order.

    `papers` names papers or experiments; an experiment may have its number of seeds behind an @. With `twice` these are
    the runs of twice the steps for claims that wait for them.
    """
    absent = {item.name for item in describe() if item.state == "missing"}
    seeds = {name: int(count) for name, _, count in (paper.partition("@") for paper in papers) if count}
    chosen = {paper.partition("@")[0] for paper in papers}
    names = [name for name in experiment if not chosen or name in chosen or name.partition("/")[0] in chosen]
    rows = {name: find_open_claims(name, results) for name in names}
    if twice:
        waiting = {name: [row for row in each if WAITS in row.reason] for name, each in rows.items()}
        rows = {name: each for name, each in waiting.items() if each}
        # beside results of which every claim can be judged again
        tasks = [
            build_twice(name, scale, [row.claim for row in each], absent, results, seeds.get(name))
            for name, each in rows.items()
            if all_run(find_open_claims(name, results))
        ]
    else:
        tasks = [
            build_task(name, scale, [row.claim for row in rows[name]], absent, seeds[name])
            if name in seeds
            else choose_task(name, scale, rows[name], absent, results)
            for name in names
        ]
    allowed = [task for task in tasks if stand_ins or not task.missing]
    planned = {task.name: task.claims for task in tasks}
    left = [row for name, each in rows.items() for row in each if row.claim not in planned.get(name, ())]
    without_data = [task for task in tasks if task not in allowed and task.claims]
    return Plan(order_tasks([task for task in allowed if task.claims]), left, without_data)


def print_rows(rows: Sequence[Sequence[object]]) -> None:
    widths = [max(len(str(row[k])) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def describe_seeds(task: Task) -> str:
    if isinstance(task.seeds, range):
        at = [f"{key}={','.join(str(format_setting(v)) for v in values)}" for key, values in (task.only or {}).items()]
        return f"{task.seeds.start}:{task.seeds.stop} of {'; '.join(task.series)}{' at ' if at else ''}{' '.join(at)}"
    return str(task.seeds or "")


def print_plan(plan: Plan, minutes: float) -> None:
    rows: list[Sequence[object]] = [("experiment", "open claims", "seeds", "minutes", "sum")]
    total = 0.0
    for task, cost in plan.order:
        total += cost
        so_far = f"{total:.1f}" + (" *" if total > minutes else "")
        rows.append((task.name, len(task.claims), describe_seeds(task), f"{cost:.1f}", so_far))
    if plan.order:
        print_rows(rows)
    print(f"{sum(len(task.claims) for task, _ in plan.order)} open claims; * is beyond {minutes:g} minutes.")
    if plan.left:
        print(f"{len(plan.left)} more would stay open:")
        print_rows([(row.experiment, row.claim, row.reason) for row in plan.left])
    if plan.without_data:
        claims = sum(len(task.claims) for task in plan.without_data)
        print(f"{claims} more wait for files (UNBRAID_DATA names their folder; --stand-ins runs without):")
        for data in sorted({data for task in plan.without_data for data in task.missing}):
            print(f"  {data}: {', '.join(task.name for task in plan.without_data if data in task.missing)}")


@contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Interrupt the block when the time is over, as Ctrl-C would; a process that was started by `&` ignores Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(max(seconds, 0.0), os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def keep_scores(root: Path, archive: Path) -> None:
    """Write all runs below `root` without weights and pictures: what `reproduce --runs` needs."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w:gz") as stored:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix in (".json", ".jsonl", ".yaml", ".csv") and path.name != "history.jsonl":
                with suppress(FileNotFoundError):  # training may remove a file meanwhile
                    stored.add(path, path.relative_to(root))
    part.replace(archive)


@contextmanager
def keep_scores_often(root: Path, archive: Path | None, seconds: float = 20.0) -> Iterator[None]:
    """Rewrite the archive while the block runs, and once more after it."""
    if archive is None:
        yield
        return
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            keep_scores(root, archive)

    keeper = threading.Thread(target=repeat, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        keep_scores(root, archive)


def reproduce_one(task: Task, arguments: argparse.Namespace) -> Any:
    """Reproduce an experiment, with the runs of `--runs` if some fit."""
    name, places = task.name, {"root": arguments.root, "out": arguments.out, "device": arguments.device}
    places |= {"scale": arguments.scale, "seeds": task.seeds, "series": task.series, "only": task.only}
    places |= {"twice": arguments.twice}
    earlier = arguments.runs / name.partition("/")[0] if arguments.runs else None
    try:
        (outcome,) = reproduce(name, runs=earlier if earlier and earlier.exists() else None, **places)
    except UsageError:  # none of them fits
        (outcome,) = reproduce(name, **places)
    return outcome


def run(order: Sequence[tuple[Task, float]], arguments: argparse.Namespace) -> list[Sequence[object]]:
    """Run experiments until the minutes are used, and return a row for each claim."""
    end, rows = time.monotonic() + 60 * arguments.minutes, []
    for task, cost in order:
        left = (end - time.monotonic()) / 60
        if left <= 0 or (cost > left and arguments.scale != "smoke" and not arguments.names):
            rows.append((task.name, "", "not started", f"{cost:.1f} minutes, {max(0.0, left):.1f} left"))
            continue
        try:
            with stop_after(60 * left):
                outcome = reproduce_one(task, arguments)
        except UnbraidError as error:  # the others still run, if there is time
            rows.append((task.name, "", "stopped" if isinstance(error, Interrupted) else "failed", str(error)))
            continue
        if arguments.twice:
            command = f"python benchmarks/judge_again.py {task.name} --twice {outcome.folder}"
            rows.append((task.name, "", "add longer runs", command))
        elif task.series:
            rows.append((task.name, "", "add seeds", f"python benchmarks/add_seeds.py {task.name} {outcome.folder}"))
        else:
            rows += [(task.name, v.claim, v.verdict, v.why) for v in outcome.verdicts]
        print(f"{task.name}: {outcome.minutes:.1f} minutes", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        help="papers, or experiments in the order to run (NAME@SEEDS sets the seeds); all by default",
    )
    parser.add_argument("--scale", default="budget")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--twice", action="store_true", help="twice the steps, for claims whose estimates still move")
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    parser.add_argument("--stand-ins", action="store_true", help="also run experiments whose data are missing")
    parser.add_argument("--results", type=Path, default=Path("results"), help="committed verdicts, to see what is open")
    parser.add_argument("--root", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--out", type=Path, default=Path("runs/papers"))
    parser.add_argument("--keep", type=Path, help="an archive of all runs without weights, rewritten while they train")
    parser.add_argument("--runs", type=Path, help="a folder of earlier runs, unpacked from --keep")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    asked = (arguments.names, arguments.scale, arguments.results, arguments.stand_ins, arguments.twice)
    plan = plan_tasks(*asked)
    names = [name.partition("@")[0] for name in arguments.names]
    if names and set(names) <= set(experiment):
        plan.order.sort(key=lambda entry: names.index(entry[0].name))
    print_plan(plan, arguments.minutes)
    if plan.order and not arguments.plan:
        with keep_loaded(), keep_scores_often(arguments.root, arguments.keep):
            rows = run(plan.order, arguments)
        print_rows([("experiment", "claim", "verdict", "why"), *rows])


if __name__ == "__main__":
    main()
