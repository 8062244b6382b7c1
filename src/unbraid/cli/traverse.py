"""The command traverse."""

from typing import Annotated

import typer

from unbraid.cli.options import AsJson, Device, RunPath, app
from unbraid.cli.outputs import Out, choose_output
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo


@app.command(
    epilog="Examples:  unbraid traverse runs/demo  ·  unbraid traverse runs/RUN --out traversal.gif --row 5"
    "  ·  unbraid traverse runs/RUN --latent z0 --latent z3 --by quantiles",
)
def traverse(
    run: RunPath,
    out: Out = None,
    row: Annotated[
        int | None,
        typer.Option(help="Row of the held-out data that is changed; -1: the prior's mean; default: random."),
    ] = None,
    latent: Annotated[list[str] | None, typer.Option(help="Latent to move; repeat for more; default: all.")] = None,
    by: Annotated[str, typer.Option(help="range (from -SPAN to SPAN) or quantiles (95% of the codes).")] = "range",
    span: Annotated[float, typer.Option(help="End of the range.")] = 2.0,
    columns: Annotated[int, typer.Option(help="Number of values.")] = 9,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw what changes while one latent moves: pictures, or the features of a table; .gif is an animation."""
    from unbraid.run import load

    opened = load(run, device=device)
    picture = opened.traverse(row=row, latents=latent or None, by=by, span=span, columns=columns)
    path = choose_output(out, opened.path, "traversal.png")
    picture.save(path)
    print_json({"file": str(path)}) if as_json else echo(str(path))
