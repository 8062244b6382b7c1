"""evaluate, report."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, Device, RunPath, app, complete
from unbraid.cli.printing import print_json, print_notes, print_scores
from unbraid.errors import UsageError


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
            autocompletion=complete("metrics", r"\w*metric\w*"),
        ),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Score so many random rows; default: all.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score finished runs; scores are appended to their scores.jsonl.

    --metric full measures everything that a run allows, except costly protocols (dci/gbt) and repeats of published
    ones (disentanglement_lib, chen2018), which are measured when they are named. Several runs must be of the same data;
    metrics that compare models (udr) then see all of them. unbraid list metrics shows what there is.
    """
    from unbraid.config import parse_overrides
    from unbraid.run import load, score_runs

    folders = [Path(word) for word in words if "=" not in word or Path(word).exists()]
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    if not folders:
        raise UsageError("evaluate needs the folder of a run.")
    runs = [load(folder, device=device) for named in folders for folder in _runs_in(named)]
    made: dict[str, Any] = {}
    for run, scores in score_runs(runs, *(metric or ()), rows=rows, **parse_overrides(settings)):
        made[str(run.path)] = [score.as_record() for score in scores]
        if not as_json:
            typer.echo(f"{run.config.run_id}, on {_population(run, rows)}")
            print_scores(scores, False)
        print_notes(run.notes)
    if as_json:
        print_json(made if len(runs) > 1 else next(iter(made.values())))


def _runs_in(folder: Path) -> list[Path]:
    """The run itself, or all finished runs of a sweep."""
    if not (folder / "sweep.yaml").exists():
        return [folder]
    runs = sorted(path.parent for path in (folder / "runs").glob("*/model.safetensors"))
    if not runs:
        raise UsageError(f"{folder} is a sweep without finished runs that could be scored.")
    return runs


def _population(run: Any, rows: int | None) -> str:
    there = len(run.evaluation)
    seen = run.evaluation.trained_on
    where = "rows, the same as in training" if seen == len(run.dataset) else f"rows, of which training saw {seen:,}"
    where = "held-out rows" if run.evaluation.held_out else where
    return f"{there:,} {where}" if rows is None or rows >= there else f"{rows:,} random of {there:,} {where}"


@app.command(epilog="Example:  unbraid report runs/demo")
def report(run: RunPath, device: Device = "auto", as_json: AsJson = False) -> None:
    """Write report.html of a run (scores, curves, traversal, reconstructions, settings) or of a sweep, in one file."""
    from unbraid.run import load
    from unbraid.sweeps import Sweep

    opened = Sweep(run) if (run / "sweep.yaml").exists() else load(run, device=device)
    if not isinstance(opened, Sweep) and not opened.scores:
        opened.score()
        print_notes(opened.notes)
    path = opened.report()
    print_json({"report": str(path)}) if as_json else typer.echo(str(path))
