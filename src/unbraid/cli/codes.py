"""The commands encode, decode, reconstruct, sample and complete."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, Device, Out, RunPath, app, choose_output
from unbraid.cli.printing import print_json
from unbraid.cli.streams import echo
from unbraid.errors import UsageError

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[INPUT]...", help="A folder, pictures, an array (.npy) or a table; default: the run's own data."
    ),
]


@app.command(
    epilog="Examples:  unbraid encode runs/demo  ·  unbraid encode runs/RUN photos --out codes.csv"
    "  ·  unbraid encode runs/RUN table.csv -o codes.npy",
)
def encode(
    run: RunPath, given: Given = None, out: Out = None, device: Device = "auto", as_json: AsJson = False
) -> None:
    """Write the codes of pictures, rows or a run's own data: .csv with names, or a plain .npy array.

    A CSV file has a column per latent, and before them the file or the number (from 0) of each row. The default is
    codes.csv in the run's folder, numbered if it exists.
    """
    from unbraid.data.code_files import write_codes
    from unbraid.open_run import load

    opened = load(run, device=device)
    path = choose_output(out, opened.path, "codes.csv", given or ())
    codes, names, heading = _encode(opened, given)
    write_codes(path, codes.cpu().numpy(), opened.model.space.code_names, names, heading)
    _print_written(path, len(codes), as_json)


@app.command(
    epilog="Examples:  unbraid decode runs/RUN codes.csv  ·  unbraid decode runs/RUN codes.npy --out decoded.npy"
    "  ·  unbraid decode runs/RUN codes.csv --out folder",
)
def decode(
    run: RunPath,
    codes: Annotated[Path, typer.Argument(help="Codes, as encode writes them: .csv or .npy.")],
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the expected observations of codes: a picture, a folder of pictures, a table (.csv) or an array (.npy)."""
    from unbraid.data.code_files import read_codes
    from unbraid.open_run import load

    opened = load(run, device=device)
    path = choose_output(out, opened.path, _name_file(opened, "decoded"), [codes])
    _write(opened, opened.decode(read_codes(codes, opened.model.space.code_names)), path, as_json)


@app.command(
    epilog="Examples:  unbraid sample runs/demo  ·  unbraid sample runs/RUN -n 100 --seed 1 --out folder"
    "  ·  unbraid sample runs/RUN -n 1000 --out sample.npy",
)
def sample(
    run: RunPath,
    count: Annotated[int, typer.Option("--count", "-n", help="How many to draw.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw codes from the prior and write what they decode to: a picture, a folder, a table or an array."""
    if count < 1:
        raise UsageError(f"--count (-n) must be at least 1, not {count}.")
    from unbraid.open_run import load

    opened = load(run, device=device)
    path = choose_output(out, opened.path, _name_file(opened, "sample"))
    _write(opened, opened.sample(count, seed), path, as_json)


@app.command(
    epilog="Examples:  unbraid reconstruct runs/demo  ·  unbraid reconstruct runs/RUN photos --out folder"
    "  ·  unbraid reconstruct runs/RUN table.csv --out again.csv",
)
def reconstruct(
    run: RunPath, given: Given = None, out: Out = None, device: Device = "auto", as_json: AsJson = False
) -> None:
    """Encode and decode observations; a picture shows the first 12 above their reconstructions."""
    from unbraid.open_run import load
    from unbraid.report.observation_files import write_comparison
    from unbraid.report.pictures import FORMATS

    opened = load(run, device=device)
    path = choose_output(out, opened.path, _name_file(opened, "reconstruction"), given or ())
    source = _choose_source(opened, given)
    names = None
    if not opened.model.multimodal:
        rows = opened.read(source)
        source, names = rows.data, rows.names if rows.heading == "file" else None
    if not opened.model.multimodal and len(opened.model.shape) == 3 and path.suffix.lower()[1:] in FORMATS:
        import torch

        first = torch.arange(min(12, len(source)), device=source.device)
        originals = source.images(first)
        write_comparison(path, originals, opened.reconstruct(originals.cpu()))
        _print_written(path, len(first), as_json)
        return
    _write(opened, opened.reconstruct(source), path, as_json, names)


def _encode(run: Any, given: list[str] | None) -> tuple[Any, list[str], str]:
    """Return codes, and the names of the rows with their heading."""
    source = _choose_source(run, given)
    if not run.model.multimodal:
        rows = run.read(source)
        names = _list_own_files(run) if not given else None
        if names is not None and len(names) == len(rows.names):
            return run.encode(rows.data), names, "file"
        return run.encode(rows.data), rows.names, rows.heading
    codes = run.encode(source)
    return codes, [str(row) for row in range(len(codes))], "row"


def _choose_source(run: Any, given: list[str] | None) -> Any:
    if not given:
        return run.dataset
    return given if len(given) > 1 else given[0]


def _list_own_files(run: Any) -> list[str] | None:
    """Return the pictures of a run that was trained on a folder, in the order of its rows."""
    from unbraid.data.find import unreadable_of
    from unbraid.data.given_rows import list_pictures

    data = run.config.data
    folder = data.settings.get("folder") if data.name == "images" else None
    return None if folder is None else list_pictures(Path(folder).expanduser(), unreadable_of(data))[1]


def _name_file(run: Any, stem: str) -> str:
    if run.model.multimodal:
        return f"{stem}.csv"
    return f"{stem}.png" if len(run.model.shape) == 3 else f"{stem}.csv"


def _write(run: Any, values: Any, path: Path, as_json: bool, names: list[str] | None = None) -> None:
    """Write observations of one modality, or a table of several."""
    from unbraid.report.observation_files import write_observations

    if run.model.multimodal:
        run.tabulate(values).save(path)
        count = len(next(iter(values.values())))
    else:
        write_observations(path, values, run.columns, names)
        count = len(values)
    _print_written(path, count, as_json)


def _print_written(path: Path, count: int, as_json: bool) -> None:
    print_json({"file": str(path), "rows": count}) if as_json else echo(f"{path}: {count:,} rows")


@app.command(epilog="Example:  unbraid complete runs/RUN table.csv --out completed.csv")
def complete(
    run: RunPath,
    table: Annotated[Path, typer.Argument(help="CSV or Parquet file with empty cells.")],
    out: Out = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fill the empty cells of a table from the others of their line, and write it as a CSV file in the table's form.

    The run was trained on several modalities (a column each) or on one table. Missing pictures are written to the
    folder NAME-pictures beside the file. The default is TABLE-completed.csv beside the table, numbered if it exists.
    """
    from unbraid.open_run import load

    ending = ".tsv" if table.suffix.lower() == ".tsv" else ".csv"
    path = choose_output(out, table.parent, f"{table.stem}-completed{ending}", [table])
    completed = load(run, device=device).complete(table)
    path = completed.save(path)
    if as_json:
        print_json({"file": str(path), "filled": completed.filled})
        return
    counts = ", ".join(f"{count:,} of {name}" for name, count in completed.filled.items() if count)
    echo(f"{path}: filled {sum(completed.filled.values()):,} cells{f' ({counts})' if counts else ''}")
