"""The command line. Torch is imported only by commands that compute, so that help and completion are instant."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid._version import __version__
from unbraid.errors import UnbraidError, UsageError, unknown

INTERRUPTED = 130
"""Exit code of a run that was asked to stop: nothing went wrong."""

app = typer.Typer(
    name="unbraid",
    help="Learn, measure and explore disentangled representations.",
    epilog="First steps:  unbraid demo  ·  unbraid list objectives  ·  unbraid train beta-tcvae data=sprites beta=6",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="List, fetch, convert and check data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


def registered_names(package: str, decorators: str) -> list[str]:
    """Names in a package's registry, read from its source: completion must not wait for torch."""
    folder = Path(__file__).parent / package
    pattern = re.compile(rf'^@(?:{decorators})\(\s*"([^"]+)"', re.MULTILINE)
    return sorted({name for path in folder.glob("*.py") for name in pattern.findall(path.read_text("utf-8"))})


def complete(package: str, decorators: str) -> Callable[[str], list[str]]:
    """Completion of a registered name."""
    return lambda incomplete: [n for n in registered_names(package, decorators) if n.startswith(incomplete)]


Recipe = Annotated[
    str, typer.Argument(help="Objective to train.", autocompletion=complete("objectives", "objective|preset"))
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings, as beta=6 data=sprites network=mlp-chen seed=0.")
]
DataSettings = Annotated[list[str] | None, typer.Argument(help="Settings of the data set, as size=64 variant=real.")]
RunPath = Annotated[Path, typer.Argument(help="Folder of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Root = Annotated[Path, typer.Option(help="Folder that holds the runs.")]


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command(epilog="Example:  unbraid demo --seed 1")
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    root: Root = Path("runs"),
    device: Device = "cpu",
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again even if there is a finished run.")] = False,
) -> None:
    """Train a beta-TCVAE on small rendered sprites, score it, and write a report with pictures (minutes on 2 cores)."""
    from unbraid.api import train as train_run
    from unbraid.demo import NOTE, SETTINGS

    name = "demo" if seed == 0 else f"demo-s{seed}"
    _clear(root / name, fresh)
    typer.echo(NOTE)
    run = train_run(**SETTINGS, seed=seed, root=root, name=name, device=device)
    _print_scores(run.score(), False)
    run.traverse().save(run.path / "traversal.png")
    typer.echo(f"Report: {run.report()}\nTraversal: {run.path / 'traversal.png'}")


@app.command(
    epilog="Examples:  unbraid train beta-tcvae data=sprites beta=6 network=mlp-chen batch=2048 steps=18000"
    "  ·  unbraid train vae data=images data.folder=photos data.size=64"
)
def train(
    recipe: Recipe,
    settings: Overrides = None,
    device: Device = "auto",
    root: Root = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Folder name; default: a hash of all settings.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run of the same settings.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away a run under the same name and start again.")
    ] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(help="Checkpoint every so many steps, not every minute.")
    ] = None,
    log_steps: Annotated[int | None, typer.Option(help="Write a history line every so many steps.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe into a run folder; Ctrl-C stops after the current step and loses nothing.

    Settings: those of the recipe (unbraid list objectives); z, the number of latent variables; data, network, encoder,
    decoder and likelihood by name, each with settings of its own behind a dot (encoder.hidden=[256,256]); and of the
    training: steps, batch, lr, decay (none, linear, cosine), seed, clip, precision (f32, tf32, bf16, f64), and split
    (default, none, 0.1, posX:0,1). Where nothing is said: data=sprites z=10 steps=20000 batch=256 lr=1e-3 seed=0, and a
    network and likelihood that fit the data.
    """
    from unbraid.api import train as train_run
    from unbraid.config import parse_overrides
    from unbraid.training import Cadence

    given = parse_overrides(settings or [])
    _refuse_options(given, "a run", ("device", "root", "name", "resume"), others=("recipe", "cadence"))
    if fresh and name is None:
        raise UsageError("--fresh needs --name, so that it is clear which run is thrown away.")
    if name is not None and _leads():
        _clear(root / name, fresh)
    cadence = Cadence(log_steps=log_steps, checkpoint_steps=checkpoint_steps)
    data = given.pop("data", "sprites")
    run = train_run(recipe, data=data, device=device, root=root, name=name, resume=resume, cadence=cadence, **given)
    if not _leads():
        return
    if run.reused and not as_json:
        typer.echo("This run is finished already; nothing was trained.")
    last = (run.history or [{"step": run.config.training.steps}])[-1]
    if as_json:
        _print_json({"run": str(run.path), "id": run.config.run_id, **last})
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
    name: Annotated[str | None, typer.Option(help="Folder name; default: a hash of what is fixed.")] = None,
    members: Annotated[int | None, typer.Option(help="Most members of a group; default: as many as fit.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric or metric/protocol; repeat for more.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="Slurm's options, as partition=gpu; repeat for more.")] = None,
    many: Annotated[bool, typer.Option("--many", help="Yes, more than 10,000 members are meant.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every combination of settings, many runs as one program; score them; write tables and a report.

    A list such as beta=1,2,4 or a range such as seed=0:50 (50 left out) is an axis; brackets hold one value together
    (encoder.hidden=[16,16],[32,32]), and the recipe may be a list, too. The same command again continues a sweep that
    was stopped; longer axes under the same name extend it; finished runs are kept.
    """
    from unbraid.config import parse_axes, parse_overrides
    from unbraid.report.tables import median_rows
    from unbraid.sweeps import sweep as run_sweep

    given: dict[str, Any] = {**parse_axes(settings or [])}
    options = ("device", "root", "name", "on", "members", "metric", "slurm", "many")
    _refuse_options(given, "a sweep", options, others=("recipe", "metrics", "cadence"))
    how: dict[str, Any] = {"on": on, "device": device, "root": root, "name": name, "members": members, "many": many}
    how |= {"metrics": metric or (), "slurm": parse_overrides(slurm or []), "data": given.pop("data", ["sprites"])}
    made = run_sweep([part.strip() for part in recipe.split(",")], **how | given)
    _print_notes(made.notes)
    if as_json:
        _print_json(made.as_record())
    else:
        _print_rows(median_rows(made.members), False)
        files = [f"{key.capitalize()}: {file}" for key, file in made.files.items() if key in ("table", "report")]
        typer.echo("\n".join(files))


@app.command(epilog="Example:  unbraid evaluate runs/demo --metric mig --metric tc/exact factors=[posX,posY]")
def evaluate(
    run: RunPath,
    settings: Annotated[list[str] | None, typer.Argument(help="Settings of metrics, as bins=30.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metric or metric/protocol; repeat for more.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Score a finished run; scores are appended to its scores.jsonl."""
    from unbraid.api import load
    from unbraid.config import parse_overrides

    opened = load(run, device=device)
    if not as_json:
        where = "held-out rows" if opened.evaluation.held_out else "rows, the same as in training"
        typer.echo(f"{opened.config.run_id}, on {len(opened.evaluation):,} {where}")
    _print_scores(opened.score(*(metric or ()), **parse_overrides(settings or [])), as_json)
    _print_notes(opened.notes)


@app.command(epilog="Example:  unbraid report runs/demo")
def report(run: RunPath, device: Device = "auto", as_json: AsJson = False) -> None:
    """Write report.html of a run (scores, curves, traversal, reconstructions, settings) or of a sweep, in one file."""
    from unbraid.api import load
    from unbraid.sweeps import Sweep

    opened = Sweep(run) if (run / "sweep.yaml").exists() else load(run, device=device)
    if not isinstance(opened, Sweep) and not opened.scores:
        opened.score()
        _print_notes(opened.notes)
    path = opened.report()
    _print_json({"report": str(path)}) if as_json else typer.echo(str(path))


@app.command("list", epilog="Example:  unbraid list objectives")
def list_names(
    kind: Annotated[str, typer.Argument(help="objectives, networks, likelihoods, datasets or metrics.")],
    as_json: AsJson = False,
) -> None:
    """List what is registered, with year, reference and settings."""
    kinds: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "objectives": lambda: _entries("unbraid.objectives", "objective"),
        "networks": _networks,
        "datasets": lambda: _entries("unbraid.data", "dataset"),
        "metrics": lambda: _entries("unbraid.metrics", "metric"),
        "likelihoods": lambda: _entries("unbraid.networks", "likelihood"),
    }
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    _print_rows(kinds[kind](), as_json)


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Data sets, their factors, and whether their files are here."""
    from unbraid.data import describe

    _print_rows([_described(item) for item in describe()], as_json)


@data_app.command(
    "fetch", epilog="Examples:  unbraid data fetch mnist  ·  unbraid data fetch cars3d --from cars3d_64.npz"
)
def data_fetch(
    name: Annotated[str, typer.Argument(help="Data set.", autocompletion=complete("data", "dataset"))],
    settings: DataSettings = None,
    source: Annotated[Path | None, typer.Option("--from", help="Convert a file or folder that you have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set (checksum, atomic), or convert your own copy of its files."""
    from unbraid.config import parse_overrides
    from unbraid.data import fetch

    path = fetch(name, source, **parse_overrides(settings or []))
    _print_json({"file": str(path)}) if as_json else typer.echo(f"{name}: {path}")


@data_app.command("check", epilog="Examples:  unbraid data check  ·  unbraid data check mpi3d variant=real")
def data_check(
    name: Annotated[str | None, typer.Argument(help="Data set; default: all that are here.")] = None,
    settings: DataSettings = None,
    as_json: AsJson = False,
) -> None:
    """Verify stored data files against the checksums inside them; exit code 1 if one is missing or damaged."""
    from unbraid.config import parse_overrides
    from unbraid.data import check, describe

    names = [name] if name else [item.name for item in describe() if item.state != "missing"]
    found = {each: check(each, **parse_overrides(settings or [])) for each in names}
    _print_rows(
        [{"name": each, "state": status.state, "what": status.words} for each, status in found.items()], as_json
    )
    if any(status.state in ("missing", "damaged") for status in found.values()):
        raise typer.Exit(1)


def _refuse_options(given: Iterable[str], of: str, options: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse settings that are options of the command, or `others` that only Python's functions have."""
    for key in given:
        if key in options or key in others:
            raise UsageError(f"'{key}' is no setting of {of}{f'; write --{key}' if key in options else ''}.")


def _clear(folder: Path, fresh: bool) -> None:
    """Remove a run that `--fresh` gives up; nothing but a run is ever removed."""
    import shutil

    from unbraid.store import RunFolder

    if fresh and folder.exists():
        with RunFolder.open(folder).locked():
            shutil.rmtree(folder)


def _entries(module: str, attribute: str) -> list[dict[str, Any]]:
    import importlib

    registry = getattr(importlib.import_module(module), attribute)
    return [_row(registry[name]) for name in registry]


def _row(entry: Any) -> dict[str, Any]:
    settings = " ".join(f"{name}={_short(p.default)}" for name, p in entry.settings.items())
    return {
        "name": entry.name,
        "year": entry.year,
        "reference": entry.reference,
        "what": entry.summary,
        "settings": settings,
    }


def _networks() -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for side in ("encoder", "decoder"):
        for row in _entries("unbraid.networks", side):
            kept = rows.setdefault(row["name"], {**row, "sides": [], "settings": ""})
            kept["sides"].append(side)
            kept["settings"] += "".join(f" {side}.{part}" for part in row["settings"].split())
    return [{**row, "sides": "+".join(row["sides"]), "settings": row["settings"].strip()} for row in rows.values()]


def _described(item: Any) -> dict[str, Any]:
    shape = "x".join(map(str, item.shape)) if item.shape else ""
    facts = {"images": item.images, "shape": shape, "factors": " ".join(item.factors)}
    return {"name": item.name, "what": item.summary, **facts, "state": item.state, "origin": item.origin}


def _short(default: Any) -> str:
    return (
        "…"
        if default is not None and not isinstance(default, (int, float, str, tuple))
        else str(default).replace(" ", "")
    )


def _print_scores(scores: Iterable[Any], as_json: bool) -> None:
    if as_json:
        _print_json([score.as_record() for score in scores])
        return
    rows = []
    for score in scores:
        low, high = score.interval or (None, None)
        interval = "" if low is None else "exact" if low == high else f"{low:.4g} .. {high:.4g}"
        row = {"score": score.name, "value": f"{score.value:.4g}", "interval": interval}
        rows.append({**row, "samples": str(score.samples), "seconds": f"{score.seconds:.2f}"})
    _print_rows(rows, False)


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("nothing here")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def _leads() -> bool:
    """Whether this process speaks for the others that torchrun has started with it."""
    return os.environ.get("RANK", "0") == "0"


def main() -> None:
    """Entry point: errors that a user can act on end in one sentence and an exit code."""
    try:
        app()
    except UnbraidError as error:
        if _leads() or error.exit_code not in (INTERRUPTED, UsageError.exit_code):  # those are the same everywhere
            typer.echo(str(error) if error.exit_code == INTERRUPTED else f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": ") + ".", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
