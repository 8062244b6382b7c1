"""The command advise."""

from typing import Annotated

import typer

from unbraid.cli.options import AsJson, Device, app
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo


@app.command(epilog="Examples:  unbraid advise photos  ·  unbraid advise things.csv  ·  unbraid advise sprites-small")
def advise(
    data: Annotated[str, typer.Argument(help="Folder of pictures, table, or name of a data set.")],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Look at data; print a recipe, settings with reasons, the time on this machine, and the commands to type next."""
    from unbraid.advice import advise as look

    advice = look(data, device)
    print_json(advice.as_record()) if as_json else echo(str(advice))
