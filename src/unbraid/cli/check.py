"""The command check."""

from pathlib import Path
from typing import Annotated

import typer

from unbraid.cli.options import AsJson, app
from unbraid.cli.printing import print_json


@app.command(
    epilog="Examples:  unbraid check runs/demo  ·  unbraid check runs/SWEEP --repair  ·  unbraid check dsprites"
)
def check(
    path: Annotated[Path, typer.Argument(help="Run, sweep, file or folder of stored data, or a data set's name.")],
    repair: Annotated[bool, typer.Option("--repair", help="Remove remains of killed processes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify every file of a run, a sweep or stored data; exit code 1 if one is damaged.

    Weights, checkpoints, settings, history and scores are compared with the hashes and tables that they were written
    by. --repair removes partial files, unusable checkpoints and free locks, and marks a run as interrupted that a dead
    process left as running; everything else is only reported.
    """
    from unbraid.folder_check import check as check_folder

    report = check_folder(path, repair=repair)
    if as_json:
        print_json(report.as_record())
    else:
        for finding in report.findings:
            typer.echo(f"{finding.state}  {finding.file}: {finding.what}")
        what = {True: "damaged", False: "whole"}[report.damaged]
        typer.echo(f"{path} is {what}: {report.files:,} files of this {report.kind} were read.")
        if any(finding.state == "untidy" for finding in report.findings) and not repair:
            typer.echo("--repair tidies up what killed processes left behind.")
    if report.damaged:
        raise typer.Exit(1)
