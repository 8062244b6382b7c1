"""The commands demo, train and sweep."""

from collections.abc import Iterable
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
    Recipe,
    Resume,
    Root,
    app,
    leads,
)
from unbraid.cli.printing import print_json, print_notes, print_rows, print_scores
from unbraid.errors import UsageError


@app.command(epilog="Example:  unbraid demo --seed 1")
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    root: Root = Path("runs"),
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again even if there is a finished run.")] = False,
) -> None:
    """Train a beta-TCVAE on small rendered sprites, score it, and write a report with pictures (minutes on 2 cores)."""
    from unbraid.api import train as train_run
    from unbraid.cli.demo_settings import NOTE, SETTINGS

    name = "demo" if seed == 0 else f"demo-s{seed}"
    typer.echo(NOTE)
    run = train_run(**SETTINGS, seed=seed, root=root, name=name, device=device, fresh=fresh)
    print_scores(run.score(), False)
    run.traverse().save(run.path / "traversal.png")
    page = run.explore(open=False)
    typer.echo(f"Report: {run.report()}\nTraversal: {run.path / 'traversal.png'}")
    typer.echo(f"Explorer: {page}  (open it in a browser: this file is the model)")


@app.command(
    epilog="Examples:  unbraid train beta-tcvae data=sprites beta=6 network=mlp-chen batch=2048 steps=18000"
    "  ·  unbraid train vae data=images data.folder=photos data.size=64"
)
def train(
    recipe: Recipe,
    settings: Overrides = None,
    device: Device = "auto",
    root: Root = Path("runs"),
    name: Name = None,
    resume: Resume = False,
    fresh: Fresh = False,
    checkpoint_steps: CheckpointSteps = None,
    log_steps: LogSteps = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe into a run folder; Ctrl-C stops after the current step and loses nothing.

    Settings are those of the recipe (unbraid list objectives); z, the number of latent variables; data, network,
    encoder, decoder and likelihood by name, and their settings with a dot (encoder.hidden=[256,256]); and those of
    training: steps, batch, lr, decay (none, linear, cosine), seed, clip, precision (f32, tf32, bf16, f64), and split
    (default, none, 0.1, posX:0,1). Defaults: data=sprites z=10 steps=20000 batch=256 lr=1e-3 seed=0, and a network and
    a likelihood that fit the data.
    """
    from unbraid.api import train as train_run
    from unbraid.config import parse_overrides
    from unbraid.training import Cadence

    overrides = parse_overrides(settings or [])
    refuse_options(overrides, "a run", ("device", "root", "name", "resume"), others=("recipe", "cadence"))
    if fresh and name is None:
        raise UsageError("--fresh needs --name, the run to remove.")
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps)
    data = overrides.pop("data", "sprites")
    destination: dict[str, Any] = {"root": root, "name": name, "resume": resume, "fresh": fresh, "cadence": cadence}
    run = train_run(recipe, data=data, device=device, **destination, **overrides)
    if not leads():
        return
    if run.reused and not as_json:
        typer.echo("This run is finished already; nothing was trained.")
    last = (run.history or [{"step": run.config.training.steps}])[-1]
    if as_json:
        print_json({"run": str(run.path), "id": run.config.run_id, **last})
    else:
        terms = "  ".join(
            f"{k} {v:.3f}" for k, v in last.items() if k not in ("format", "step", "epoch", "images_per_second")
        )
        typer.echo(f"{run.path}  step {last['step']}  {terms}\nNext: unbraid evaluate {run.path}")


@app.command(
    epilog="Examples:  unbraid sweep beta-tcvae data=sprites beta=1,2,4,6 seed=0:50 network=mlp-chen"
    "  ·  unbraid sweep beta-vae,beta-tcvae beta=1,4 seed=0:10 --on ray"
)
def sweep(
    recipe: Recipe,
    settings: Annotated[list[str] | None, typer.Argument(help="Settings; beta=1,2,4 and seed=0:50 are axes.")] = None,
    on: Annotated[str, typer.Option(help="local, ray, ray://HOST:PORT or slurm.")] = "local",
    device: Device = "auto",
    root: Root = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Folder name; default: a hash of the fixed settings.")] = None,
    members: Annotated[int | None, typer.Option(help="Largest group; default: as many members as fit.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric or metric/protocol; repeat for more.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="Slurm's options, as partition=gpu; repeat for more.")] = None,
    many: Annotated[bool, typer.Option("--many", help="Allow more than 10,000 members.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every combination of settings, many runs as one program; score them; write tables and a report.

    A list such as beta=1,2,4 or a range such as seed=0:50 (without 50) is an axis; brackets enclose one value
    (encoder.hidden=[16,16],[32,32]); the recipe may be a list, too. The same command continues a sweep that was
    stopped, and longer axes under the same name extend it; finished runs are kept.
    """
    from unbraid.config import parse_axes, parse_overrides
    from unbraid.report.sweep_page import choose_main_scores
    from unbraid.report.tables import build_median_rows, list_scores
    from unbraid.sweeps import sweep as run_sweep

    axes: dict[str, Any] = {**parse_axes(settings or [])}
    options = ("device", "root", "name", "on", "members", "metric", "slurm", "many")
    refuse_options(axes, "a sweep", options, others=("recipe", "metrics", "cadence"))
    chosen: dict[str, Any] = {"on": on, "device": device, "root": root, "name": name, "members": members, "many": many}
    chosen |= {"metrics": metric or None, "slurm": parse_overrides(slurm or []), "data": axes.pop("data", ["sprites"])}
    result = run_sweep([part.strip() for part in recipe.split(",")], **chosen | axes)
    print_notes(result.notes)
    if as_json:
        print_json(result.as_record())
    else:
        shown = choose_main_scores(result.members)
        print_rows(build_median_rows(result.members, shown), False)
        more = len(list_scores(result.members)) - len(shown)
        print_notes([f"{more} more scores are in the table."] if more else [])
        files = [f"{key.capitalize()}: {file}" for key, file in result.files.items() if key in ("table", "report")]
        typer.echo("\n".join(files))


def refuse_options(settings: Iterable[str], of: str, options: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise if a setting is an option of the command, or one of the `others` that only Python's functions have."""
    for key in settings:
        if key in options or key in others:
            raise UsageError(f"'{key}' is not a setting of {of}{f'; write --{key}' if key in options else ''}.")
