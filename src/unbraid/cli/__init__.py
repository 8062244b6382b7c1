"""The command line. Only commands that compute import torch, so that help and completion are instant."""

# ruff: noqa: I001  the order of the modules is the order of the commands in the help
import sys
from pathlib import Path
from typing import Annotated

import typer

from unbraid._version import __version__
from unbraid.cli import (
    train as train,
    evaluate as evaluate,
    codes as codes,
    explore as explore,
    share as share,
    check as check,
    reproduce as reproduce,
    runs as runs,
    list_and_data as list_and_data,
    show as show,
)
from unbraid.cli.failures import explain_failure
from unbraid.cli.options import INTERRUPTED, app as app
from unbraid.cli.source_names import registered_names as registered_names
from unbraid.cli.streams import echo, flush_streams, prepare_streams
from unbraid.plugins import load_files


@app.callback(invoke_without_command=True)
def prepare(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE.py",
            help="Import your own objectives, networks, data sets and metrics; before the command; repeat for more.",
        ),
    ] = None,
) -> None:
    if version:
        echo(__version__)
        raise typer.Exit
    load_files(files or [])


def main() -> None:
    """Run the command line; a failure is one sentence on stderr and an exit code."""
    prepare_streams()
    try:
        code = typer.main.get_command(app)(prog_name="unbraid", standalone_mode=False)
        code = code if isinstance(code, int) else 0
        if code == INTERRUPTED:  # typer turns Ctrl-C into an exit without a message
            code = explain_failure(KeyboardInterrupt())
    except SystemExit:  # completion
        raise
    except BaseException as error:
        code = explain_failure(error)
    if lost := flush_streams():
        echo(f"error: {lost}", err=True)
        code = code or 1
    sys.exit(code)
