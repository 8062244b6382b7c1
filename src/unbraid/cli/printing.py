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
        interval = "" if low is None else "exact" if score.deterministic else f"{low:.4g} .. {high:.4g}"
        row = {"score": score.name, "value": f"{score.value:.4g}", "interval": interval}
        rows.append({**row, "samples": str(score.samples), "seconds": f"{score.seconds:.2f}"})
    print_rows(rows, False)


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
