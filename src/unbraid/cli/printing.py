"""Tables, scores and notes as text or JSON."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import typer


def print_scores(scores: Iterable[Any]) -> None:
    rows = []
    for score in scores:
        low, high = score.interval or (None, None)
        interval = "none" if low is None else "exact" if score.deterministic else f"{low:.4g} .. {high:.4g}"
        row = {"score": score.name, "value": f"{score.value:.4g}", "interval": interval}
        row |= {key: _format_level(getattr(score, key)) for key in ("chance", "ceiling")}
        rows.append({**row, "samples": str(score.samples), "seconds": f"{score.seconds:.2f}"})
    print_rows(rows, False)


def print_explanations(scores: Iterable[Any]) -> None:
    """Print what each score asks, what its interval is for, and why some have none."""
    from unbraid.metrics.questions import explain

    listed = list(scores)
    for family in dict.fromkeys(score.metric for score in listed):
        typer.echo(f"{family}: {explain(family)}")
    for covers in dict.fromkeys(score.covers for score in listed if score.covers):
        names = ", ".join(score.name for score in listed if score.covers == covers)
        kind, _, why = covers.partition(": ")
        typer.echo(f"no interval, {why}: {names}" if why else f"interval for the {kind}: {names}")


def _format_level(level: float | None) -> str:
    return "" if level is None else f"{level:.3g}"


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("nothing here")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


def print_json(value: Any) -> None:
    from unbraid.store import replace_non_finite

    typer.echo(json.dumps(replace_non_finite(value), indent=2, default=str))
