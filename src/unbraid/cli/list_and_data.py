"""The commands list and data."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.early_checks import check_data, check_data_set
from unbraid.cli.options import AsJson, DataSettings, app, complete, data_app
from unbraid.cli.printing import print_json, print_rows
from unbraid.cli.source_names import DATASETS
from unbraid.cli.streams import echo
from unbraid.errors import UsageError, unknown


@app.command("list", epilog="Example:  unbraid list objectives")
def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(help="objectives, networks, likelihoods, latents, priors, datasets, metrics or experiments."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List registered names with year, reference and settings."""
    kinds: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "objectives": lambda: _list_entries("unbraid.methods", "objective"),
        "networks": _list_networks,
        "datasets": lambda: _list_entries("unbraid.data", "dataset"),
        "metrics": lambda: _list_entries("unbraid.metrics", "metric"),
        "likelihoods": lambda: _list_entries("unbraid.networks", "likelihood"),
        "latents": lambda: _list_entries("unbraid.latents", "block"),
        "priors": lambda: _list_entries("unbraid.latents", "prior"),
        "experiments": _list_experiments,
    }
    if kind is None:
        raise UsageError(f"list needs what to list: {', '.join(kinds)}.")
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    print_rows(kinds[kind](), as_json)


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """List data sets, their factors, and whether their files are on this machine."""
    from unbraid.data import describe

    print_rows([_describe_dataset(item) for item in describe()], as_json)


@data_app.command(
    "fetch", epilog="Examples:  unbraid data fetch mnist  ·  unbraid data fetch cars3d --from cars3d_64.npz"
)
def data_fetch(
    name: Annotated[str, typer.Argument(help="Data set.", autocompletion=complete(*DATASETS))],
    settings: DataSettings = None,
    source: Annotated[Path | None, typer.Option("--from", help="Convert a file or folder that you have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set (checksum, atomic), or convert your own copy of its files."""
    check_data_set(name)
    from unbraid.config import parse_overrides
    from unbraid.data import fetch

    path = fetch(name, source, **parse_overrides(settings or []))
    print_json({"file": str(path)}) if as_json else echo(f"{name}: {path}")


@data_app.command("check", epilog="Examples:  unbraid data check  ·  unbraid data check mpi3d variant=real")
def data_check(
    name: Annotated[str | None, typer.Argument(help="Data set; default: all that are here.")] = None,
    settings: DataSettings = None,
    as_json: AsJson = False,
) -> None:
    """Verify stored data files against the checksums inside them; exit code 1 if one is missing or damaged."""
    if name:
        check_data_set(name)
    from unbraid.config import parse_overrides
    from unbraid.data import check, describe

    names = [name] if name else [item.name for item in describe() if item.state != "missing"]
    found = {each: check(each, **parse_overrides(settings or [])) for each in names}
    print_rows([{"name": each, "state": status.state, "what": status.words} for each, status in found.items()], as_json)
    if any(status.state in ("missing", "damaged") for status in found.values()):
        raise typer.Exit(1)


@data_app.command(
    "show",
    epilog="Examples:  unbraid data show mnist-styles modalities=3  ·  unbraid data show things.csv --picture a.png",
)
def data_show(
    name: Annotated[str, typer.Argument(help="Data set, folder or CSV file.", autocompletion=complete(*DATASETS))],
    settings: DataSettings = None,
    picture: Annotated[Path | None, typer.Option(help="Draw random rows into this file.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to draw.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Show the modalities and factors of a data set, how many rows have each, and a picture of some rows."""
    check_data(name)
    import torch

    from unbraid.config import parse_overrides
    from unbraid.data.find import find_data
    from unbraid.report.data_preview import draw_preview, list_contents

    overrides = {f"data.{key.removeprefix('data.')}": value for key, value in parse_overrides(settings or []).items()}
    data = find_data(name, overrides, torch.device("cpu"))[1]
    if picture is not None:
        draw_preview(data, rows).save(picture)
    print_rows(list_contents(data), as_json)


def _list_experiments() -> list[dict[str, Any]]:
    import unbraid.papers  # noqa: F401 (registers the experiments)

    return _list_entries("unbraid.experiments", "experiment")


def _list_entries(module: str, attribute: str) -> list[dict[str, Any]]:
    import importlib

    registry = getattr(importlib.import_module(module), attribute)
    return [_describe_entry(registry[name]) for name in registry]


def _describe_entry(entry: Any) -> dict[str, Any]:
    settings = " ".join(f"{name}={_format_default(p.default)}" for name, p in entry.settings.items())
    facts = {"name": entry.name, "year": entry.year, "reference": entry.reference}
    return {**facts, "what": entry.summary, "settings": settings}


def _list_networks() -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for side, chosen in (("encoder", "encoder"), ("decoder", "decoder"), ("refiner", "decoder"), ("flow", "decoder")):
        for row in _list_entries("unbraid.networks", side):
            merged = rows.setdefault(row["name"], {**row, "sides": [], "settings": []})
            merged["sides"].append(side)
            merged["settings"] += [f"{chosen}.{part}" for part in row["settings"].split()]
    return [
        {**row, "sides": "+".join(row["sides"]), "settings": " ".join(dict.fromkeys(row["settings"]))}
        for row in rows.values()
    ]


def _describe_dataset(item: Any) -> dict[str, Any]:
    shape = "x".join(map(str, item.shape)) if item.shape else ""
    facts = {"images": item.images, "shape": shape, "factors": " ".join(item.factors)}
    facts["modalities"] = " ".join(item.modalities)
    return {"name": item.name, "what": item.summary, **facts, "state": item.state, "origin": item.origin}


def _format_default(default: Any) -> str:
    shown = default is None or isinstance(default, (int, float, str, tuple))
    words = str(default).lower() if default is None or isinstance(default, bool) else str(default)
    return words.replace(" ", "") if shown else "…"
