"""The commands explore and traverse."""

from pathlib import Path
from typing import Annotated

import typer

from unbraid.cli.early_checks import check_run
from unbraid.cli.options import AsJson, Device, Out, RunPath, app, check_default_folder, check_page, choose_output
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo
from unbraid.errors import UsageError


@app.command(
    epilog="Examples:  unbraid explore demo  ·  unbraid explore runs/RUN --out model.html"
    "  ·  unbraid explore runs/SWEEP"
)
def explore(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs or a sweep; 'demo' is a built-in run.")],
    output: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", help="File to write; default: explore.html in the run's folder."),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="float32, float16, a number of bits, or auto: 16 bits, fewer above the size limit.")
    ] = "auto",
    max_kb: Annotated[int, typer.Option(min=1, help="Size limit of one run's page, in kB.")] = 1200,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page if there is a display.")] = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write one HTML file that holds a run's networks and runs them: sliders, traversals, a map, your own pictures.

    It opens from disk, needs no network and no server, and can be sent to anyone. Several runs, or a sweep, become one
    page with a table of them.
    """
    if output is not None:
        check_page(output, "explore.html")
    bits = int(weights) if weights.isdecimal() and len(weights) < 4 else weights
    options = {"output": output, "weights": bits, "open": show}
    sweeps = [name for name in runs if (Path(name) / "sweep.yaml").exists()]
    if sweeps and len(runs) > 1:
        raise UsageError("A sweep is explored by itself; leave the other runs out.")
    for name in runs:
        check_run(name)
    from unbraid.open_run import load
    from unbraid.sweeps import Sweep
    from unbraid.sweeps.results import explore_runs

    if sweeps:
        sweep = Sweep(sweeps[0])
        check_default_folder(sweep.path, output)
        page = sweep.explore(**options)
    elif len(runs) > 1:
        check_default_folder(Path(), output)
        page = explore_runs([load(name, device=device) for name in runs], **options)
    else:
        run = load(runs[0], device=device)
        check_default_folder(run.path, output)
        page = run.explore(**options, max_kb=max_kb)
    print_json({"explorer": str(page)}) if as_json else echo(str(page))


@app.command(
    epilog="Examples:  unbraid traverse runs/demo  ·  unbraid traverse runs/RUN --out traversal.gif --row 5"
    "  ·  unbraid traverse runs/RUN --latent z0 --latent z3 --by quantiles",
)
def traverse(
    run: RunPath,
    out: Out = None,
    row: Annotated[
        int | None,
        typer.Option(help="Row of the (held-out) data that is changed; -1: the prior's mean; default: random."),
    ] = None,
    latent: Annotated[list[str] | None, typer.Option(help="Latent to move; repeat for more; default: all.")] = None,
    by: Annotated[str, typer.Option(help="range (from -SPAN to SPAN) or quantiles (95% of the codes).")] = "range",
    span: Annotated[float, typer.Option(help="End of the range.")] = 2.0,
    columns: Annotated[int, typer.Option(help="Number of values.")] = 9,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw what changes while one latent moves: pictures, or the features of a table; .gif is an animation."""
    from unbraid.open_run import load

    opened = load(run, device=device)
    if row is not None and not -1 <= row < len(opened.evaluation):
        rows = "held-out data" if opened.evaluation.held_out else "data"
        ends = f"from 0 to {len(opened.evaluation) - 1:,}, or -1 for the prior's mean"
        raise UsageError(f"--row must be a row of the {rows} {ends}, not {row}.")
    path = choose_output(out, opened.path, "traversal.png")
    picture = opened.traverse(row=row, latents=latent or None, by=by, span=span, columns=columns)
    picture.save(path)
    print_json({"file": str(path)}) if as_json else echo(str(path))
