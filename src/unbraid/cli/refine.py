"""refine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import (
    AsJson,
    CheckpointSteps,
    Device,
    Fresh,
    LogSteps,
    Name,
    Overrides,
    Resume,
    Root,
    RunPath,
    app,
    leads,
)
from unbraid.cli.printing import print_json
from unbraid.cli.train import refuse_options
from unbraid.errors import UsageError

SHOWN = ("loss", "reconstruction", "kl", "labels", "flow", "normal", "critic/accuracy")
"""Terms of the last line of the history that are told at the end."""


@app.command(
    epilog="Examples:  unbraid refine runs/demo --with vae z=5 steps=20000"
    "  ·  unbraid refine runs/demo --name sharper decoder.modulation=spatial"
)
def refine(
    run: RunPath,
    settings: Overrides = None,
    kind: Annotated[
        str,
        typer.Option("--with", help="What the second stage is made of: vae, flow, labels, gan, cgan, code or student."),
    ] = "vae",
    device: Device = "auto",
    root: Root = Path("runs"),
    name: Name = None,
    resume: Resume = False,
    fresh: Fresh = False,
    checkpoint_steps: CheckpointSteps = None,
    log_steps: LogSteps = None,
    as_json: AsJson = False,
) -> None:
    """Sharpen a finished run by a second stage that leaves untouched what the first one learned.

    The second stage is a run of its own. It holds the first one frozen, as latents c, adds latents z for what the first
    could not draw, and is scored, reported and refined again like any other run. Data and split are those of the first
    run. Kinds (--with), and what they set where nothing is said; all else is as for train (steps=20000 batch=256 …):

    \b
    vae      a refiner draws from y, the run's own picture; z adds to it
             z=5 lr=1e-4 batch=32
    flow     a coupling flow has the density of x given y; no z
    labels   z is labels, of the factors=[…] that are named
             z=1
    gan      a critic judges what a refiner draws, beside y
             z=10 lr=1e-4 batch=64
    cgan     a GAN that is told c alone, to compare gan with
             z=10 lr=1e-4 batch=64
    code     an ordinary decoder of c and z, to compare vae with
             z=5 lr=1e-4 batch=32
    student  an autoencoder that learns c anew, and to move pictures by it
             as the run does; c may change
             z=5 lr=1e-4

    Settings besides: beta and samples of vae, encoder, decoder (a refiner of vae and gan: adain, mlp; of flow
    decoder.couplings, decoder.hidden) and likelihood. Where c is labels, given=[…] learns at the rows' own.
    """
    from unbraid.api import refine as refine_run
    from unbraid.config import parse_overrides
    from unbraid.training import Cadence

    given = parse_overrides(settings or [])
    refuse_options(given, "a second stage", ("device", "root", "name", "resume"), others=("run", "kind", "cadence"))
    if "data" in given:
        raise UsageError("A stage learns from the data of the run that it refines; leave data=… out.")
    if fresh and name is None:
        raise UsageError("--fresh needs --name, so that it is clear which run is thrown away.")
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps)
    how: dict[str, Any] = {"root": root, "name": name, "resume": resume, "fresh": fresh, "cadence": cadence}
    made = refine_run(run, kind, device=device, **how, **given)
    if not leads():
        return
    last, check = (made.history or [{"step": made.config.training.steps}])[-1], made.unchanged
    if as_json:
        print_json({"run": str(made.path), "id": made.config.run_id, "parent": check, **last})
        return
    if made.reused:
        typer.echo("This run is finished already; nothing was trained.")
    terms = "  ".join(f"{k} {v:.3f}" for k, v in last.items() if k in SHOWN)
    typer.echo(f"{made.path}  step {last['step']}  {terms}")
    typer.echo(f"max |c before - c after| = {check['max_change']:g} on {check['rows']:,} rows of {run}")
    typer.echo(f"Next: unbraid evaluate {made.path}  ·  unbraid report {made.path}")
