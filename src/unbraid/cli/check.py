"""The command check."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, app
from unbraid.cli.printing import print_json, print_notes


@app.command(
    epilog="Examples:  unbraid check runs/demo  ·  unbraid check runs/SWEEP --repair  ·  unbraid check runs"
    "  ·  unbraid check dsprites"
)
def check(
    path: Annotated[Path, typer.Argument(help="Run, sweep, folder of them, stored data, or a data set's name.")],
    repair: Annotated[bool, typer.Option("--repair", help="Remove remains of killed processes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify every file of a run, a sweep, a folder of them, or stored data; exit code 1 if one is damaged.

    A file inside a run stands for the run, and a folder for all runs, sweeps and stored data below it.
    Weights, checkpoints, settings, history and scores are compared with the hashes and tables that they were written
    by. --repair removes partial files, unusable checkpoints and free locks, and marks a run as interrupted that a dead
    process left as running; everything else is only reported. With --with FILE.py before the command, a note says if
    that file has changed since a run was trained with it.
    """
    from unbraid.folder_check import check as check_folder

    report = check_folder(path, repair=repair)
    if as_json:
        print_json(report.as_record())
    else:
        for finding in report.findings:
            typer.echo(f"{finding.state}  {finding.file}: {finding.what}")
        typer.echo(_summarise(report))
        print_notes(report.notes)
        if report.unknown:
            count = f"{len(report.unknown):,} {'file was' if len(report.unknown) == 1 else 'files were'}"
            typer.echo(f"{count} not checked, without a checksum of unbraid to compare with, as {report.unknown[0]}.")
        if any(finding.state == "untidy" for finding in report.findings) and not repair:
            typer.echo("--repair tidies up what killed processes left behind.")
    if report.damaged:
        raise typer.Exit(1)


def _summarise(report: Any) -> str:
    state = "damaged" if report.damaged else "whole"
    if report.kind != "folder":
        return f"{report.path} is {state}: {report.files:,} files of this {report.kind} were read."
    runs = f"{report.whole_runs:,} of {report.runs:,} {'run is' if report.runs == 1 else 'runs are'} whole"
    return f"{report.path} is {state}: {runs}; {report.files:,} files were read."
