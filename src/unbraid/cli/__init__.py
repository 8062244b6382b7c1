"""The command line. Only commands that compute import torch, so that help and completion are instant."""

# ruff: noqa: I001  the order of the modules is the order of the commands in the help
import sys
from typing import Annotated

import typer

from unbraid._version import __version__
from unbraid.cli import (
    train as train,
    evaluate as evaluate,
    explore as explore,
    share as share,
    check as check,
    reproduce as reproduce,
    list_and_data as list_and_data,
)
from unbraid.cli.options import INTERRUPTED, app as app, leads, registered_names as registered_names
from unbraid.errors import UnbraidError, UsageError


@app.callback(invoke_without_command=True)
def print_version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; print errors that a user can act on as one sentence, and exit with a code."""
    try:
        app()
    except UnbraidError as error:
        if leads() or error.exit_code not in (INTERRUPTED, UsageError.exit_code):  # which all ranks raise
            typer.echo(str(error) if error.exit_code == INTERRUPTED else f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": ") + ".", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(INTERRUPTED)
    except SystemExit as exit:  # typer turns Ctrl-C into an exit without a message
        if exit.code == INTERRUPTED:
            typer.echo("stopped", err=True)
        raise
