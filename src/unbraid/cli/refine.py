"""The command refine."""

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

PRINTED_TERMS = ("loss", "reconstruction", "kl", "labels", "flow", "normal", "critic/accuracy")
"""Terms of the last history line that are printed at the end."""


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
    """Sharpen a finished run by a second stage, which keeps the first one unchanged.

    The second stage is a new run. It keeps the first run frozen as latents c, adds latents z for details that the first
    could not draw, and can be scored, reported and refined like any other run. It uses the data and the split of the
    first run. Kinds (--with) and their defaults; the other defaults are those of train (steps=20000 batch=256 …):

    \b
    vae      a refiner draws from z and y, the picture of the run
             z=5 lr=1e-4 batch=32
    flow     a coupling flow has the density of x given y; no z
    labels   z are the labels of factors=[…]
             z=1
    gan      a critic judges what a refiner draws, beside y
             z=10 lr=1e-4 batch=64
    cgan     a GAN given c but not y, as a baseline of gan
             z=10 lr=1e-4 batch=64
    code     an ordinary decoder of c and z, as a baseline of vae
             z=5 lr=1e-4 batch=32
    student  an autoencoder that learns c again, and to change pictures
             by c as the run does; c may change
             z=5 lr=1e-4

    Other settings: beta and samples of vae; encoder; decoder (a refiner for vae and gan: adain, mlp; for flow
    decoder.couplings, decoder.hidden); likelihood. If c are labels, given=[…] trains with the labels of the rows.
    """
    from unbraid.api import refine as refine_run
    from unbraid.config import parse_overrides
    from unbraid.training import Cadence

    overrides = parse_overrides(settings or [])
    refuse_options(overrides, "a second stage", ("device", "root", "name", "resume"), others=("run", "kind", "cadence"))
    if "data" in overrides:
        raise UsageError("A stage uses the data of the run that it refines; leave data=… out.")
    if fresh and name is None:
        raise UsageError("--fresh needs --name, the run to remove.")
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps)
    destination: dict[str, Any] = {"root": root, "name": name, "resume": resume, "fresh": fresh, "cadence": cadence}
    refined = refine_run(run, kind, device=device, **destination, **overrides)
    if not leads():
        return
    last, check = (refined.history or [{"step": refined.config.training.steps}])[-1], refined.unchanged
    if as_json:
        print_json({"run": str(refined.path), "id": refined.config.run_id, "parent": check, **last})
        return
    if refined.reused:
        typer.echo("This run is finished already; nothing was trained.")
    terms = "  ".join(f"{k} {v:.3f}" for k, v in last.items() if k in PRINTED_TERMS)
    typer.echo(f"{refined.path}  step {last['step']}  {terms}")
    typer.echo(f"max |c before - c after| = {check['max_change']:g} on {check['rows']:,} rows of {run}")
    typer.echo(f"Next: unbraid evaluate {refined.path}  ·  unbraid report {refined.path}")
