"""The command reproduce."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.early_checks import check_experiment
from unbraid.cli.options import AsJson, Device, Root, app, complete
from unbraid.cli.printing import print_json, print_notes, print_rows
from unbraid.cli.source_names import EXPERIMENTS
from unbraid.cli.streams import echo
from unbraid.errors import UsageError


@app.command(
    epilog="Examples:  unbraid reproduce chen2018/fig2 --scale small  ·  unbraid reproduce chen2018 --scale budget"
    "  ·  unbraid reproduce split2020/fig11 --scale budget --seeds 36"
)
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="PAPER[/ID]",
            help="A paper, or one table or figure of it.",
            autocompletion=complete(*EXPERIMENTS),
        ),
    ],
    scale: Annotated[str, typer.Option(help="smoke, small, budget or paper.")] = "small",
    root: Root = Path("runs/reproduce"),
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and verdicts.")] = Path("results"),
    runs: Annotated[
        Path | None,
        typer.Option(help="Use the runs of this sweep, or of all sweeps in this folder; train only the missing ones."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A:B", help="Seeds of every series, instead of the scale's: 36, or 10:36. Finished runs are kept."
        ),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(help="Train only this series, and those that it refines; repeat for others.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Train only these values of a setting that the scale sweeps, as beta=4,10; repeat for others.",
            show_default=False,
        ),
    ] = None,
    twice: Annotated[
        bool,
        typer.Option("--twice", help="Train for twice the steps, to see if verdicts stay the same; judge nothing."),
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train what a table or figure of a paper needs, test its claims, and write table, figure and verdicts.

    smoke takes seconds and only shows that the program works; small takes minutes on 2 cores; budget is the largest
    that fits 20 minutes on one H200; paper is the paper's own protocol. Finished runs are reused, and the same command
    continues after an interruption. unbraid list experiments lists all experiments.
    """
    check_experiment(experiment)
    from unbraid.config import parse_axes
    from unbraid.papers import reproduce as reproduce_experiment

    part = {"seeds": _read_seeds(seeds), "series": series or (), "only": parse_axes(only or ()), "twice": twice}
    outcomes = reproduce_experiment(experiment, scale=scale, root=root, out=out, device=device, runs=runs, **part)
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        print_notes(outcome.notes)
        rows += [
            {"experiment": outcome.name, "claim": v.claim, "verdict": v.verdict, "why": v.why} for v in outcome.verdicts
        ]
    if as_json:
        print_json([outcome.as_record() for outcome in outcomes])
        return
    if twice:
        echo("\n".join(f"Scores: {outcome.folder}" for outcome in outcomes))
        if scale != "smoke":
            echo(
                "Next: the command of the whole runs again; claims whose estimates still move are then judged by both."
            )
        return
    print_rows(rows, False)
    echo("\n".join(f"Results: {outcome.folder}" for outcome in outcomes))


def _read_seeds(text: str | None) -> int | range | None:
    """Return a number of seeds, or a range of them."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"(?:(\d{1,9}):)?(\d{1,9})", text.strip())):
        raise UsageError(f"--seeds {text} is neither a number of seeds (36) nor a range (10:36, without 36).")
    return int(found[2]) if found[1] is None else range(int(found[1]), int(found[2]))
