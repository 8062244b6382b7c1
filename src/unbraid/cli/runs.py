"""The command runs: a table of what is in a folder of runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, app
from unbraid.cli.printing import print_rows
from unbraid.errors import RunError, UnbraidError
from unbraid.progress import format_seconds

MAIN_SCORES = ("mig/exact", "mig/histogram-mean", "elbo/closed-form", "elbo/sampled", "reconstruction/nats")
"""Scores that the table shows, the first two of these that a run has."""


@app.command(epilog="Examples:  unbraid runs  ·  unbraid runs runs/SWEEP  ·  unbraid runs --json")
def runs(
    root: Annotated[Path, typer.Argument(help="Folder that holds runs and sweeps.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs and sweeps of a folder: recipe, data, state, steps, main scores, time. It imports no torch."""
    if not root.is_dir():
        raise RunError(f"There is no folder {root}; unbraid train makes runs.")
    found = [_describe(folder, root) for folder in _find(root)]
    print_rows(found if as_json else [_format(record) for record in found], as_json)


def _find(root: Path) -> Iterator[Path]:
    """Yield the folders of runs and sweeps below a folder; a sweep's own runs only if it is the root."""
    start = root / "runs" if (root / "sweep.yaml").exists() else root
    if (start / "config.yaml").exists():
        yield start
        return
    for folder in sorted(path for path in start.iterdir() if path.is_dir()):
        if (folder / "sweep.yaml").exists() or (folder / "config.yaml").exists():
            yield folder
        elif not folder.is_symlink():  # links may form a loop
            yield from _find(folder)


def _describe(folder: Path, root: Path) -> dict[str, Any]:
    """Return the facts about a run or a sweep, for programs."""
    name = "." if folder == root else folder.relative_to(root).as_posix()
    kind, describe = ("sweep", _describe_sweep) if (folder / "sweep.yaml").exists() else ("run", _describe_run)
    try:
        return {"name": name, "kind": kind, **describe(folder)}
    except UnbraidError as error:
        return {"name": name, "kind": kind, "state": "damaged", "error": str(error)}


def _describe_run(folder: Path) -> dict[str, Any]:
    from unbraid.store import RunFolder

    run = RunFolder(folder)
    config, status, history = run.config, run.status, run.read_lines("history")
    newest = {
        "/".join(filter(None, (line.get("metric"), line.get("protocol"), line.get("predictor")))): line.get("value")
        for line in run.read_lines("scores")
    }
    main = [score for score in MAIN_SCORES if isinstance(newest.get(score), (int, float))][:2]
    return {
        "recipe": config.objective.name,
        "data": _name_data(config.data),
        "state": status["state"],
        "step": status.get("step", 0),
        "steps": status.get("step", 0) if run.ended else config.training.steps,
        "scores": {score: newest[score] for score in main},
        "seconds": round(_measure_seconds(history, config.training.batch), 1),
    }


def _describe_sweep(folder: Path) -> dict[str, Any]:
    found = [_describe_run(path.parent) for path in sorted((folder / "runs").glob("*/config.yaml"))]
    finished = sum(each["state"] == "finished" for each in found)
    return {
        "recipe": ",".join(dict.fromkeys(each["recipe"] for each in found)),
        "data": ",".join(dict.fromkeys(each["data"] for each in found)),
        "state": "finished" if finished == len(found) else "unfinished",
        "runs": len(found),
        "finished": finished,
    }


def _format(record: dict[str, Any]) -> dict[str, str]:
    """Return the row of a table for these facts."""
    row = {key: record.get(key, "") for key in ("name", "recipe", "data", "state")}
    if "runs" in record:
        return {
            **row,
            "state": f"sweep, {record['finished']} of {record['runs']} finished",
            "steps": "",
            "scores": "",
            "time": "",
        }
    if "error" in record:
        return {**row, "steps": "", "scores": record["error"], "time": ""}
    steps = f"{record['step']:,}" + ("" if record["step"] == record["steps"] else f" of {record['steps']:,}")
    scores = "  ".join(f"{score} {value:.4g}" for score, value in record["scores"].items())
    return {**row, "steps": steps, "scores": scores, "time": format_seconds(record["seconds"])}


def _name_data(data: Any) -> str:
    """Return the name of a data set, with the folder or file of the user's own."""
    own = next((data.settings[key] for key in ("folder", "file", "csv", "source") if data.settings.get(key)), None)
    return data.name if own is None else f"{data.name} {Path(str(own)).name}"


def _measure_seconds(history: list[dict[str, Any]], batch: int) -> float:
    """Return how long training took, from the speed of each line of the history."""
    seconds, before = 0.0, 0
    for line in history:
        if line.get("images_per_second"):
            seconds += (line["step"] - before) * batch / line["images_per_second"]
        before = line["step"]
    return seconds
