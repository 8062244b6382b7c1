"""evaluate, report."""

from typing import Annotated

import typer

from unbraid.cli.printing import print_json, print_notes, print_scores
from unbraid.cli.shared import AsJson, Device, RunPath, app


@app.command(epilog="Example:  unbraid evaluate runs/demo --metric mig --metric tc/exact factors=[posX,posY]")
def evaluate(
    run: RunPath,
    settings: Annotated[list[str] | None, typer.Argument(help="Settings of metrics, as bins=30.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric or metric/protocol; repeat for more.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a finished run; scores are appended to its scores.jsonl."""
    from unbraid.api import load
    from unbraid.config import parse_overrides

    opened = load(run, device=device)
    if not as_json:
        where = "held-out rows" if opened.evaluation.held_out else "rows, the same as in training"
        typer.echo(f"{opened.config.run_id}, on {len(opened.evaluation):,} {where}")
    print_scores(opened.score(*(metric or ()), **parse_overrides(settings or [])), as_json)
    print_notes(opened.notes)


@app.command(epilog="Example:  unbraid report runs/demo")
def report(run: RunPath, device: Device = "auto", as_json: AsJson = False) -> None:
    """Write report.html of a run (scores, curves, traversal, reconstructions, settings) or of a sweep, in one file."""
    from unbraid.api import load
    from unbraid.sweeps import Sweep

    opened = Sweep(run) if (run / "sweep.yaml").exists() else load(run, device=device)
    if not isinstance(opened, Sweep) and not opened.scores:
        opened.score()
        print_notes(opened.notes)
    path = opened.report()
    print_json({"report": str(path)}) if as_json else typer.echo(str(path))
