"""The command compare."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, Device, app, complete
from unbraid.cli.printing import print_json, print_rows
from unbraid.errors import UsageError


@app.command(
    epilog="Examples:  unbraid compare runs/A runs/B --metric mig --rows 10000"
    "  ·  unbraid compare runs/SWEEP beta=1 beta=6 --metric mig/exact"
)
def compare(
    words: Annotated[
        list[str],
        typer.Argument(metavar="A B", help="Two runs, two sweeps, or a sweep and two settings such as beta=1 beta=6."),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="mig, mig/exact, …; repeat for more.", autocompletion=complete("metrics", r"\w*metric\w*")),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Score this many random rows; default: all.")] = None,
    resamples: Annotated[int, typer.Option(help="Random halves of the rows that measure the spread.")] = 20,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Print the difference B - A of scores with its 95% interval.

    Two runs are scored anew on the same rows, and the interval is over draws of as many rows. Two settings, in one
    sweep or in two, are compared by the scores that their runs have, and the interval is over seeds. If it holds 0, the
    rows or the seeds do not tell which is better.
    """
    folders = [Path(word) for word in words if Path(word).exists()]
    settings = [word for word in words if not Path(word).exists()]
    missing = [word for word in settings if "=" not in word]
    if missing:
        raise UsageError(
            f"{missing[0]} does not exist; compare takes two runs, two sweeps, or a sweep and two settings."
        )
    are_sweeps = [(folder / "sweep.yaml").exists() for folder in folders]
    if len(words) == 3 and are_sweeps == [True] and len(settings) == 2:
        found = _compare_in_sweep(folders[0], settings, metric or [])
    elif len(words) == 2 and are_sweeps == [True, True]:
        found = _compare_sweeps(folders, metric or [])
    elif len(words) == 2 and are_sweeps == [False, False]:
        found = _compare_runs(folders, metric or ["mig"], rows, resamples, device)
    else:
        raise UsageError("compare takes two runs, two sweeps, or a sweep and two settings such as beta=1 beta=6.")
    if as_json:
        print_json([comparison.as_record() for comparison in found])
    else:
        print_rows([_format(comparison) for comparison in found], False)


def _compare_runs(folders: list[Path], names: list[str], rows: int | None, resamples: int, device: str) -> list[Any]:
    from unbraid.run import compare_runs, load

    first, second = (load(folder, device=device) for folder in folders)
    return compare_runs(first, second, *names, rows=rows, resamples=resamples)


def _compare_in_sweep(folder: Path, settings: list[str], names: list[str]) -> list[Any]:
    from unbraid.config import parse_overrides
    from unbraid.sweeps import Sweep

    first, second = (parse_overrides([setting]) for setting in settings)
    return Sweep(folder).compare(first, second, *names)


def _compare_sweeps(folders: list[Path], names: list[str]) -> list[Any]:
    from unbraid.sweeps import Sweep

    first, second = (Sweep(folder) for folder in folders)
    return first.compare({}, {}, *names, other=second)


def _format(comparison: Any) -> dict[str, str]:
    ends = comparison.interval
    numbers = {"A": comparison.first, "B": comparison.second, "B - A": comparison.difference}
    interval = "none" if ends is None else f"{ends[0]:.4g} .. {ends[1]:.4g}"
    row = {"score": comparison.score, **{key: f"{value:.4g}" for key, value in numbers.items()}}
    return {**row, "95% interval": interval, "over": comparison.over}
