"""The commands evaluate, report and compare."""

import json
from math import inf, isfinite, nan
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.early_checks import check_metrics, check_run
from unbraid.cli.options import (
    AsJson,
    Device,
    RunPath,
    app,
    check_default_folder,
    check_page,
    complete,
    refuse_files_of_runs,
)
from unbraid.cli.printing import print_explanations, print_json, print_notes, print_rows, print_scores
from unbraid.cli.source_names import METRICS
from unbraid.cli.streams import echo
from unbraid.cli.swept_settings import describe_settings, read_swept_settings
from unbraid.errors import UsageError

MAX_RANKED_SCORES = 4
"""Scores that the table of several runs shows."""


@app.command(
    epilog="Examples:  unbraid evaluate runs/demo --metric mig --metric tc/exact factors=[posX,posY]"
    "  ·  unbraid evaluate runs/demo --metric full --rows 10000"
    "  ·  unbraid evaluate runs/SWEEP --metric udr"
)
def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN... [SETTING=VALUE]...", help="Runs, or sweeps; settings of metrics, as bins=30."),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="mig, mig/exact, full or disentanglement_lib; repeat for more.",
            autocompletion=complete(*METRICS),
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Score this many random rows; default: all.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what each score asks, and what its interval is for.")
    ] = False,
    device: Device = "auto",
    no_save: Annotated[bool, typer.Option("--no-save", help="Print the scores and write nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the scores to this JSON file, and not to the runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score finished runs; scores are appended to their scores.jsonl, unless --no-save or --out FILE is given.

    Each value stands beside its 95% interval, chance (codes that know nothing) and ceiling (a perfect code).

    --metric full measures everything that a run allows, except costly protocols (dci/gbt) and repeats of published
    ones (disentanglement_lib, chen2018), which must be named. Several runs must have the same data; metrics that
    compare models (udr) then compare all of them. unbraid list metrics lists all metrics.
    """
    from unbraid.atomic import write_text
    from unbraid.config import parse_overrides
    from unbraid.store import replace_non_finite

    if out is not None and (no_save or (out.exists() and not out.is_file()) or not out.parent.is_dir()):
        raise UsageError(f"--out {out} needs a plain file in a folder that exists, and no --no-save.")
    if out is not None:
        refuse_files_of_runs(out)
    folders = [Path(word) for word in words if "=" not in word or Path(word).exists()]
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    if not folders:
        raise UsageError("evaluate needs the folder of a run.")
    swept = {run: own for named in folders for run, own in read_swept_settings(named).items()}
    folders = [folder for named in folders for folder in _list_runs(named)]
    for folder in folders:
        check_run(folder)
    check_metrics(metric or ())
    from unbraid.open_run import load
    from unbraid.run import score_runs

    runs = [load(folder, device=device) for folder in folders]
    records: dict[str, Any] = {}
    ranked: list[tuple[dict[str, Any], list[Any]]] = []
    shown: set[str] = set()  # runs of a sweep mostly have the same notes
    save = not no_save and out is None
    try:
        for run, scores in score_runs(runs, *(metric or ()), rows=rows, save=save, **parse_overrides(settings)):
            records[str(run.path)] = [score.as_record() for score in scores]
            settings_of_run = swept.get(run.path.name, {})
            ranked.append(({"run": run.path.name, **settings_of_run}, scores))
            if not as_json and scores:
                of_sweep = f" ({describe_settings(settings_of_run)})" if settings_of_run else ""
                echo(f"{run.path.name}{of_sweep}, on {_describe_rows(run, rows)}")
                print_scores(scores)
                if explain:
                    print_explanations(scores)
            print_notes([note for note in run.notes if note not in shown])
            shown.update(run.notes)
    finally:  # also if one of the metrics fails
        if len(ranked) > 1 and not as_json:
            _print_ranking(ranked)
        if out is not None and records:
            write_text(out, json.dumps(replace_non_finite(records), indent=2) + "\n")
        if as_json and records:
            print_json(records if len(runs) > 1 else next(iter(records.values())))


def _list_runs(folder: Path) -> list[Path]:
    """Return the run itself, or all finished runs of a sweep."""
    if not (folder / "sweep.yaml").exists():
        return [folder]
    runs = sorted(path.parent for path in (folder / "runs").glob("*/model.safetensors"))
    if not runs:
        raise UsageError(f"{folder} is a sweep without finished runs; continue it first.")
    return runs


def _print_ranking(runs: list[tuple[dict[str, Any], list[Any]]]) -> None:
    """Print the first scores of several runs side by side, the highest value of the first one at the top."""
    names = list(dict.fromkeys(score.name for _, scores in runs for score in scores))[:MAX_RANKED_SCORES]
    if not names:
        return
    values = [{score.name: score.value for score in scores} for _, scores in runs]
    known = [each[names[0]] if isfinite(each.get(names[0], nan)) else -inf for each in values]
    order = sorted(range(len(runs)), key=lambda i: -known[i])
    columns = dict.fromkeys(key for facts, _ in runs for key in facts)
    rows = []
    for i in order:
        row = {key: str(runs[i][0].get(key, "")) for key in columns}
        rows.append(row | {name: f"{values[i][name]:.4g}" if name in values[i] else "" for name in names})
    echo(f"all {len(runs)} runs, by {names[0]}")
    print_rows(rows, False)


def _describe_rows(run: Any, rows: int | None) -> str:
    total, trained = len(run.evaluation), run.evaluation.trained_on
    kind = (
        "rows, the same as in training" if trained == len(run.dataset) else f"rows, of which training saw {trained:,}"
    )
    kind = "held-out rows" if run.evaluation.held_out else kind
    return f"{total:,} {kind}" if rows is None or rows >= total else f"{rows:,} random of {total:,} {kind}"


@app.command(epilog="Examples:  unbraid report runs/demo  ·  unbraid report runs/RUN --out model.html")
def report(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", help="File to write; default: report.html in the run's folder."),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write report.html of a run (scores, curves, traversal, reconstructions, settings) or of a sweep, in one file.

    A run without scores is scored first. With --out, nothing is written to the run's folder.
    """
    if out is not None:
        check_page(out, "report.html")
    from unbraid.open_run import load
    from unbraid.sweeps import Sweep

    opened = Sweep(run) if (run / "sweep.yaml").exists() else load(run, device=device)
    check_default_folder(opened.path, out)
    if isinstance(opened, Sweep):
        path = opened.report(out)
    else:
        scores = opened.scores
        if not scores:
            scores = opened.score(save=out is None)
            print_notes(opened.notes)
        path = opened.report(out, scores=scores)
    print_json({"report": str(path)}) if as_json else echo(str(path))


@app.command(
    epilog="Examples:  unbraid compare runs/A runs/B --metric mig --rows 10000"
    "  ·  unbraid compare runs/SWEEP beta=1 beta=6 --metric mig/exact"
    "  ·  unbraid compare runs/SWEEP recipe=beta-vae,beta=6 recipe=beta-tcvae,beta=6"
)
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Two runs, two sweeps, or a sweep and two settings such as beta=1 beta=6. "
            "A setting may hold several axes: beta=1,lr=1e-3.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="mig, mig/exact, …; repeat for more.", autocompletion=complete(*METRICS)),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Score this many random rows; default: all.")] = None,
    resamples: Annotated[int, typer.Option(help="Random halves of the rows that measure the spread.")] = 20,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Print the difference B - A of scores with its 95% interval; without --metric, of MIG and ELBO.

    Two runs are scored anew on the same rows, and the interval is over draws of as many rows. Two settings, in one
    sweep or in two, are compared by the scores that their runs have, and the interval is over seeds. Other axes that
    vary are never taken for seeds: each combination of their values that both sides have is a row of its own. If the
    interval holds 0, the rows or the seeds do not tell which is better.
    """
    folders = [Path(word) for word in words if Path(word).exists()]
    settings = [word for word in words if not Path(word).exists()]
    missing = [word for word in settings if "=" not in word]
    if missing:
        raise UsageError(
            f"{missing[0]} does not exist; compare takes two runs, two sweeps, or a sweep and two settings."
        )
    are_sweeps = [(folder / "sweep.yaml").exists() for folder in folders]
    if (are_sweeps, len(settings)) in (([True], 2), ([True, True], 0), ([True, True], 2)):
        found = _compare_settings(folders, settings, metric or [])
    elif len(words) == 2 and are_sweeps == [False, False]:
        found = _compare_runs(folders, metric or [], rows, resamples, device)
    else:
        raise UsageError("compare takes two runs, two sweeps, or a sweep and two settings such as beta=1 beta=6.")
    if as_json:
        print_json([comparison.as_record() for comparison in found])
    else:
        print_rows([_format(comparison) for comparison in found], False)


def _compare_runs(folders: list[Path], names: list[str], rows: int | None, resamples: int, device: str) -> list[Any]:
    check_metrics(names)
    from unbraid.open_run import load
    from unbraid.run import compare_runs

    first, second = (load(folder, device=device) for folder in folders)
    found = compare_runs(first, second, *names, rows=rows, resamples=resamples)
    print_notes(first.notes)
    return found


def _compare_settings(folders: list[Path], settings: list[str], names: list[str]) -> list[Any]:
    """Return the differences between two settings of one sweep or of two; without settings, between two sweeps."""
    from unbraid.config import parse_pairs
    from unbraid.sweeps import Sweep

    first, second = map(parse_pairs, settings) if settings else ({}, {})
    sweep = Sweep(folders[0])
    found = sweep.compare(first, second, *names, other=Sweep(folders[-1]))
    print_notes(sweep.notes)
    return found


def _format(comparison: Any) -> dict[str, str]:
    from unbraid.report.tables import format_setting

    ends = comparison.interval
    numbers = {"A": comparison.first, "B": comparison.second, "B - A": comparison.difference}
    interval = "none" if ends is None else f"{ends[0]:.4g} .. {ends[1]:.4g}"
    row = {key: str(format_setting(value)) for key, value in comparison.settings.items()}
    row |= {"score": comparison.score, **{key: f"{value:.4g}" for key, value in numbers.items()}}
    return {**row, "95% interval": interval, "over": comparison.over}
