"""The command complete."""

from pathlib import Path
from typing import Annotated

import typer

from unbraid.cli.options import AsJson, Device, RunPath, app
from unbraid.cli.outputs import Out, choose_output
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo


@app.command(epilog="Example:  unbraid complete runs/RUN table.csv --out completed.csv")
def complete(
    run: RunPath,
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with empty cells.")],
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fill the empty cells of a table from the others of their line, and write it as a CSV file.

    The run was trained on several modalities (a column each) or on one table. Missing pictures are written to the
    folder NAME-pictures beside the file. The default is TABLE-completed.csv beside the table, numbered if it exists.
    """
    from unbraid.run import load

    path = choose_output(out, table.parent, f"{table.stem}-completed.csv", [table])
    completed = load(run, device=device).complete(table)
    path = completed.save(path)
    if as_json:
        print_json({"file": str(path), "filled": completed.filled})
        return
    counts = ", ".join(f"{count:,} of {name}" for name, count in completed.filled.items() if count)
    echo(f"{path}: filled {sum(completed.filled.values()):,} cells{f' ({counts})' if counts else ''}")
