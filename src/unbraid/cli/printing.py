"""Tables, scores and notes as text or JSON."""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from unbraid.cli.streams import echo, guarded_stdout
from unbraid.printable import escape


def print_scores(scores: Iterable[Any]) -> None:
    rows = []
    for score in scores:
        low, high = score.interval or (None, None)
        interval = "none" if low is None else "exact" if score.deterministic else f"{low:.4g} .. {high:.4g}"
        row = {"score": score.name, "value": f"{score.value:.4g}", "interval": interval}
        levels = {"chance": score.chance, "ceiling": score.ceiling}
        row |= {key: "" if level is None else f"{level:.3g}" for key, level in levels.items()}
        rows.append({**row, "samples": str(score.samples), "seconds": f"{score.seconds:.2f}"})
    print_rows(rows, False)


def print_explanations(scores: Iterable[Any]) -> None:
    """Print what each score asks, what its interval is for, and why some have none."""
    from unbraid.metrics.questions import explain

    listed = list(scores)
    for family in dict.fromkeys(score.metric for score in listed):
        echo(f"{family}: {explain(family)}")
    for covers in dict.fromkeys(score.covers for score in listed if score.covers):
        names = ", ".join(score.name for score in listed if score.covers == covers)
        kind, _, why = covers.partition(": ")
        echo(f"no interval, {why}: {names}" if why else f"interval for the {kind}: {names}")


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        echo(f"note: {escape(note)}", err=True)


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    if not rows:
        echo("nothing here")
        return
    with guarded_stdout():
        terminal = sys.stdout is not None and sys.stdout.isatty()
        console = Console(width=None if terminal else 160, markup=False)
        cells = [["" if value is None else escape(value) for value in row.values()] for row in rows]
        headers = _break_headers([escape(column) for column in rows[0]], cells, console.width)
        table = Table(box=None, pad_edge=False)
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in cells:
            table.add_row(*row)
        console.print(table)


def _break_headers(headers: list[str], cells: list[list[str]], width: int) -> list[str]:
    """Return headers with line breaks after spaces and slashes if the table is too wide, lest they break in a word."""
    columns = zip(headers, *cells, strict=True)
    total = sum(2 + max(map(len, column)) for column in columns) - 2
    return headers if total <= width else [re.sub(r"[ /]", r"\g<0>\n", header) for header in headers]


def print_json(value: Any) -> None:
    from unbraid.store import replace_non_finite

    echo(json.dumps(replace_non_finite(value), indent=2, default=str))
