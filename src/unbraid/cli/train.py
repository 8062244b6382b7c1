"""The commands demo, advise, train, sweep and refine."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import unbraid.cli.options as given
from unbraid.cli.early_checks import check_data, check_metrics, check_recipes, check_settings
from unbraid.cli.options import app, leads
from unbraid.cli.printing import print_json, print_notes, print_rows, print_scores
from unbraid.cli.streams import echo
from unbraid.errors import RunError, UsageError
from unbraid.printable import shorten
from unbraid.progress import announce

PRINTED_TERMS = ("loss", "reconstruction", "kl", "labels", "flow", "normal", "critic/accuracy")
"""Terms of the last history line that are printed at the end."""

DEMO_NOTE = (
    "Training a beta-TCVAE on 1,536 rendered squares (size 6, x 16, y 16); this takes a minute or two on 2 cores."
)
DEFAULT_ROOT = Path("runs")
MAX_KB_OF_DEMO = 300
"""Size of the explorer's page; most of it are the encoder's 330,000 weights."""

DEMO_SETTINGS: dict[str, Any] = {
    "recipe": "beta-tcvae",
    "data": "sprites-small",
    "beta": 25,
    "z": 6,
    "encoder": "mlp",
    "decoder": "broadcast-pixel",
    "decoder_channels": 16,
    "steps": 2000,
    "batch": 256,
    "lr": 5e-3,
    "decay": "cosine",
}
"""Settings of the demo. The decoder matters more than the weights: a fully connected one rarely separates position from
size, while one small MLP per pixel (`broadcast-pixel`) takes positions as inputs. A batch of 256 gives the estimate of
the total correlation enough components to tell axes from diagonals. A large learning rate that decays turns the code
quickly, then settles."""


@app.command(epilog="Example:  unbraid demo --seed 1")
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    root: given.Root = Path("runs"),
    device: given.Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again even if there is a finished run.")] = False,
) -> None:
    """Train a beta-TCVAE on small rendered sprites, score it, and write a report with pictures (minutes on 2 cores)."""
    from unbraid.api import train as train_run

    name = "demo" if seed == 0 else f"demo-s{seed}"
    echo(DEMO_NOTE)
    run = train_run(**DEMO_SETTINGS, seed=seed, root=root, name=name, device=device, fresh=fresh)
    print_scores(run.score())
    run.traverse().save(run.path / "traversal.png")
    page = run.explore(open=False, max_kb=MAX_KB_OF_DEMO)
    echo(f"Report: {run.report()}\nTraversal: {run.path / 'traversal.png'}")
    size = round(page.path.stat().st_size / 1000)
    echo(f"Explorer: {page}  ({size} kB; open it in a browser: this file is the model)")
    echo("\n".join(["How to go on:", *(f"  {line}" for line in list_next_steps(str(page)))]))


def list_next_steps(page: str) -> list[str]:
    """Return what to do after the demo: activate the environment if it is not active, open the page, use own data."""
    inactive = sys.prefix != sys.base_prefix and os.environ.get("VIRTUAL_ENV") != sys.prefix
    environment = os.path.relpath(sys.prefix)
    return [
        *([f"source {environment}/bin/activate   # once per terminal, so that it knows unbraid"] if inactive else []),
        f"open {page} in a browser, and move the sliders",
        "unbraid advise my/folder   # what fits your own pictures or table, and how long it takes",
        "unbraid train beta-tcvae data=my/folder   # settings follow from the data",
    ]


@app.command(epilog="Examples:  unbraid advise photos  ·  unbraid advise things.csv  ·  unbraid advise sprites-small")
def advise(
    data: Annotated[str, typer.Argument(help="Folder of pictures, table, or name of a data set.")],
    settings: given.DataSettings = None,
    device: given.Device = "auto",
    as_json: given.AsJson = False,
) -> None:
    """Look at data; print a recipe, settings with reasons, the time on this machine, and the commands to type next."""
    check_data(data)
    from unbraid.advice import advise as look
    from unbraid.config import parse_overrides

    advice = look(data, device, parse_overrides(settings or []))
    print_json(advice.as_record()) if as_json else echo(str(advice))


@app.command(
    epilog="Examples:  unbraid train beta-tcvae data=my/folder"
    "  ·  unbraid train --config runs/mine/config.yaml seed=1"
    "  ·  unbraid train beta-tcvae data=sprites beta=6 network=mlp-chen batch=2048 steps=18000 (for a GPU)"
)
def train(
    recipe: given.RecipeUnlessConfig = None,
    settings: given.Overrides = None,
    config: given.ConfigFile = None,
    device: given.Device = "auto",
    root: given.Root = Path("runs"),
    name: given.Name = None,
    resume: given.Resume = False,
    fresh: given.Fresh = False,
    checkpoint_steps: given.CheckpointSteps = None,
    log_steps: given.LogSteps = None,
    track: given.Track = None,
    as_json: given.AsJson = False,
) -> None:
    """Train a recipe into a run folder; Ctrl-C stops after the current step and loses nothing.

    Settings are those of the recipe (unbraid list objectives); z, the number of latent variables; data, network,
    encoder, decoder and likelihood by name, and their settings with a dot (encoder.hidden=[256,256]); and those of
    training: steps, batch, lr, decay (none, linear, cosine), seed, clip, precision (f32, tf32, bf16, f64), split
    (default, none, 0.1, posX:0,1), and patience (measurements of the held-out loss without improvement before training
    ends). For your own pictures or table, settings that you leave out follow from the data, and each is printed with
    its reason. Defaults for named data sets: data=sprites z=10 steps=20000 batch=256 lr=1e-3 seed=0, and a network and
    a likelihood that fit. With --config, settings that you leave out are those of the file; --config FILE --resume
    continues the run that the file belongs to.
    """
    recipe, overrides, stored = _read_request(recipe, settings or [], config)
    _check_destination(overrides, "a run", ("recipe",), name, fresh)
    if stored is None or "data" in overrides:
        overrides["data"] = check_data_name(overrides.get("data", "sprites"))
        check_data(overrides["data"])
    check_recipes([recipe])
    check_settings(recipe, overrides)
    from unbraid.api import train as train_run
    from unbraid.training import Cadence
    from unbraid.training.stored_config import list_settings_of

    if config is not None:
        if resume and name is None and root == DEFAULT_ROOT:
            root, name = _find_run_of_config(config, overrides)
        overrides = list_settings_of(stored, overrides)
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps, track=track or ())
    destination: dict[str, Any] = {"root": root, "name": name, "resume": resume, "fresh": fresh}
    run = train_run(recipe, device=device, **destination, cadence=cadence, **overrides)
    hidden = ("format", "step", "epoch", "images_per_second")
    path = shlex.quote(str(run.path))
    following = "Next: " + "  ·  ".join(f"unbraid {verb} {path}" for verb in ("report", "explore", "evaluate"))
    _print_run(run, as_json, lambda term: term not in hidden, following)


@app.command(
    epilog="Examples:  unbraid sweep beta-tcvae data=sprites beta=1,2,4,6 seed=0:50 network=mlp-chen"
    "  ·  unbraid sweep beta-vae,beta-tcvae beta=1,4 seed=0:10 --on ray"
)
def sweep(
    recipe: given.Recipe,
    settings: Annotated[list[str] | None, typer.Argument(help="Settings; beta=1,2,4 and seed=0:50 are axes.")] = None,
    on: Annotated[str, typer.Option(help="local, ray, ray://HOST:PORT or slurm.")] = "local",
    device: given.Device = "auto",
    root: given.Root = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Folder name; default: a hash of the fixed settings.")] = None,
    members: Annotated[int | None, typer.Option(help="Largest group; default: as many members as fit.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric or metric/protocol; repeat for more.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="Slurm's options, as partition=gpu; repeat for more.")] = None,
    many: Annotated[bool, typer.Option("--many", help="Allow more than 10,000 members.")] = False,
    track: given.Track = None,
    as_json: given.AsJson = False,
) -> None:
    """Train every combination of settings, many runs as one program; score them; write tables and a report.

    A list such as beta=1,2,4 or a range such as seed=0:50 (without 50) is an axis; brackets enclose one value
    (encoder.hidden=[16,16],[32,32]); the recipe may be a list, too. The same command continues a sweep that was
    stopped, and longer axes under the same name extend it; finished runs are kept.
    """
    from unbraid.config import parse_axes, parse_overrides

    axes: dict[str, Any] = {**parse_axes(settings or [])}
    options = ("device", "root", "name", "on", "members", "metric", "slurm", "many", "track")
    refuse_options(axes, "a sweep", options, others=("recipe", "metrics", "cadence", "report", "refines"))
    data = [check_data_name(each) for each in axes.pop("data", ["sprites"])]
    recipes = [part.strip() for part in recipe.split(",")]
    check_recipes(recipes)
    check_settings(recipes[0], axes)
    try:
        for each in data:
            check_data(each)
    except UsageError as error:
        from unbraid.sweeps.missing_data import explain_member_without_data

        explain_member_without_data(root, name, data, error)
        raise
    check_metrics(metric or ())
    from unbraid.report.sweep_page import choose_main_scores
    from unbraid.report.tables import build_median_rows, list_scores
    from unbraid.sweeps import sweep as run_sweep

    chosen: dict[str, Any] = {"on": on, "device": device, "root": root, "name": name, "members": members, "many": many}
    chosen |= {"metrics": metric or None, "slurm": parse_overrides(slurm or []), "data": data}
    chosen["track"] = track or ()
    result = run_sweep(recipes, **chosen | axes)
    print_notes(result.notes)
    if as_json:
        print_json(result.as_record())
    else:
        measured = result.members  # read from disk once
        shown = choose_main_scores(measured)
        print_rows(build_median_rows(measured, shown), False)
        more = len(list_scores(measured)) - len(shown)
        print_notes([f"{more} more scores are in the table."] if more else [])
        files = [f"{key.capitalize()}: {file}" for key, file in result.files.items() if key in ("table", "report")]
        echo("\n".join(files))


@app.command(
    epilog="Examples:  unbraid refine runs/demo --with vae z=5 steps=20000"
    "  ·  unbraid refine runs/demo --name sharper decoder.modulation=spatial"
)
def refine(
    run: given.RunPath,
    settings: given.StageSettings = None,
    kind: Annotated[
        str,
        typer.Option("--with", help="What the second stage is made of: vae, flow, labels, gan, cgan, code or student."),
    ] = "vae",
    device: given.Device = "auto",
    root: given.Root = Path("runs"),
    name: given.Name = None,
    resume: given.Resume = False,
    fresh: given.Fresh = False,
    checkpoint_steps: given.CheckpointSteps = None,
    log_steps: given.LogSteps = None,
    track: given.Track = None,
    as_json: given.AsJson = False,
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
    _check_destination(overrides, "a second stage", ("run", "kind"), name, fresh)
    if "data" in overrides:
        raise UsageError("A stage uses the data of the run that it refines; leave data=… out.")
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps, track=track or ())
    destination: dict[str, Any] = {"root": root, "name": name, "resume": resume, "fresh": fresh}
    refined = refine_run(run, kind, device=device, **destination, cadence=cadence, **overrides)
    check = refined.unchanged
    change = f"max |c before - c after| = {check['max_change']:g} on {check['rows']:,} rows of {run}"
    path = shlex.quote(str(refined.path))
    following = f"{change}\nNext: unbraid evaluate {path}  ·  unbraid report {path}"
    _print_run(refined, as_json, lambda term: term in PRINTED_TERMS, following, parent=check)


def _read_request(word: str | None, settings: list[str], file: Path | None) -> tuple[str, dict[str, Any], Any]:
    """Return recipe, settings and stored config: the first word is the recipe, or a setting if there is a file."""
    from unbraid.config import parse_overrides

    if file is None:
        if word is None:
            raise UsageError("train needs a recipe, as in: unbraid train beta-tcvae data=FOLDER; or --config FILE.")
        return given.check_recipe(word), parse_overrides(settings), None
    if word is not None and "=" not in word:
        raise UsageError(f"--config {file} has its own recipe; leave '{shorten(word)}' out, or write key=value.")
    overrides = parse_overrides([*([] if word is None else [word]), *settings])
    stored = _read_config_file(file)
    return stored.objective.name, overrides, stored


def _read_config_file(path: Path) -> Any:
    """Return the config in a file, or in the folder of a run."""
    from unbraid.folder_names import to_path
    from unbraid.store import read_config

    file = to_path(path, "--config")
    sweep = file if file.is_dir() else file.parent
    if (sweep / "sweep.yaml").exists() and file in (sweep, sweep / "sweep.yaml"):
        member = min((sweep / "runs").glob("*/config.yaml"), default=sweep / "runs/RUN/config.yaml")
        example = shlex.quote(str(member))
        raise UsageError(f"--config {file} is a sweep, not a run; each of its runs has a config.yaml, as {example}.")
    file = file / "config.yaml" if file.is_dir() else file
    if not file.exists():
        raise UsageError(f"There is no file {file}; each run has a config.yaml in its folder.")
    try:
        return read_config(file)
    except RunError as error:
        if file.suffix in (".yaml", ".yml"):
            raise
        raise UsageError(f"--config {file} is not a run's config.yaml; each run has one in its folder.") from error


def _find_run_of_config(path: Path, changes: Mapping[str, Any]) -> tuple[Path, str | None]:
    """Return root and name of the run that a config belongs to; no name if there is none, or if settings change."""
    from unbraid.store import RunFolder

    folder = RunFolder(path if path.is_dir() else path.parent)
    is_of_run = (folder.path / "status.json").exists() and (path.is_dir() or path.name == "config.yaml")
    if not is_of_run:
        return DEFAULT_ROOT, None
    if folder.in_sweep:
        raise UsageError(f"{folder.path} is a run of a sweep; repeat the command of the sweep, which continues it.")
    if changes:
        if leads():
            announce(f"With {next(iter(changes))}=… this is another run than {folder.path}, which is not continued.")
        return DEFAULT_ROOT, None
    place = folder.path if folder.path.name not in ("", "..") else folder.path.resolve()
    return place.parent, place.name


def _check_destination(
    overrides: Mapping[str, Any], of: str, others: tuple[str, ...], name: str | None, fresh: bool
) -> None:
    from unbraid.config import check_names

    options = ("device", "root", "name", "resume", "fresh", "track")
    refuse_options(overrides, of, options, others=(*others, "cadence"))
    check_names(overrides)
    if fresh and name is None:
        raise UsageError("--fresh needs --name, the run to remove.")


def _print_run(run: Any, as_json: bool, shown: Callable[[str], bool], following: str, **facts: Any) -> None:
    """Print the last line of a run's history, and then `following`; `shown` chooses the terms."""
    if not leads():
        return
    last = (run.history or [{"step": run.config.training.steps}])[-1]
    if as_json:
        print_json({"run": str(run.path), "id": run.config.run_id, **facts, **last})
        return
    if run.reused:
        echo("This run is finished already; nothing was trained.")
    terms = "  ".join(f"{term} {value:.3f}" for term, value in last.items() if shown(term))
    echo(f"{run.path}  step {last['step']}  {terms}\n{following}")


def check_data_name(data: Any) -> str:
    """Return the name of a data set, a folder or a file; a whole number may be the name of a folder."""
    if isinstance(data, int) and not isinstance(data, bool):
        return str(data)
    if not isinstance(data, str) or not data.strip() or "\0" in data:
        raise UsageError(f"data={shorten(data)} is not the name of a data set, a folder of pictures or a CSV file.")
    return data


def refuse_options(settings: Iterable[str], of: str, options: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise if a setting is an option of the command, or one of the `others` that only Python's functions have."""
    for key in settings:
        if key in options or key in others:
            raise UsageError(f"'{key}' is not a setting of {of}{f'; write --{key}' if key in options else ''}.")
