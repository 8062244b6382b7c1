"""The command runs: a table of what is in a folder of runs."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from unbraid.cli.options import AsJson, app
from unbraid.cli.printing import print_rows
from unbraid.cli.swept_settings import read_swept_settings
from unbraid.errors import RunError, UnbraidError, UsageError
from unbraid.progress import format_seconds

MAIN_SCORES = ("mig/exact", "mig/histogram-mean", "elbo/closed-form", "elbo/sampled", "reconstruction/nats")
"""Scores that the table shows, the first two of these that a run has."""


@app.command(
    epilog="Examples:  unbraid runs  ·  unbraid runs runs/SWEEP  ·  unbraid runs runs/SWEEP --sort mig/exact"
    "  ·  unbraid runs --json"
)
def runs(
    root: Annotated[Path, typer.Argument(help="Folder that holds runs and sweeps.")] = Path("runs"),
    sort: Annotated[
        str | None, typer.Option(metavar="SCORE", help="Show this score, as mig/exact, and the highest first.")
    ] = None,
    ascending: Annotated[bool, typer.Option("--ascending", help="With --sort: the lowest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the runs and sweeps of a folder: recipe, data, state, steps, main scores, time.

    Runs of a sweep come with the settings that vary. --sort takes scores of all rows and of default settings; runs
    without the score come last.
    """
    if not root.is_dir():
        raise RunError(f"There is no folder {root}; unbraid train makes runs.")
    if ascending and sort is None:
        raise UsageError("--ascending needs --sort SCORE.")
    swept, folders = read_swept_settings(root), list(_find(root))
    unknown = dict.fromkeys(next(iter(swept.values()))) if swept else None  # of a folder that is no member
    found = [_describe(folder, root, swept.get(folder.name, unknown)) for folder in folders]
    if sort is not None:
        found = _sort(found, folders, sort, ascending)
    print_rows(found if as_json else [_format(record) for record in found], as_json)


def _sort(found: list[dict[str, Any]], folders: list[Path], score: str, ascending: bool) -> list[dict[str, Any]]:
    """Return the records with a score before their other ones, in its order; those without it come last."""
    known = [
        _read_comparable_scores(folder) if record["kind"] == "run" and "error" not in record else {}
        for record, folder in zip(found, folders, strict=True)
    ]
    names = sorted({name for scores in known for name in scores})
    if score not in names:
        near = [name for name in names if name.startswith(f"{score}/")] or names
        raise UsageError(
            f"No run has the score {score}; " + (f"they have {', '.join(near)}." if near else "score them first.")
        )
    for record, scores in zip(found, known, strict=True):
        if score in scores:
            others = {name: value for name, value in record["scores"].items() if name != score}
            record["scores"] = {score: scores[score], **others}

    def rank(record: dict[str, Any]) -> tuple[bool, float]:
        value = record.get("scores", {}).get(score)
        return value is None, 0.0 if value is None else value if ascending else -value

    return sorted(found, key=rank)


def _read_comparable_scores(folder: Path) -> dict[str, float]:
    """Return the newest scores of all rows and of default settings, by name."""
    from unbraid.metrics.base import Score  # which imports torch, to know the defaults
    from unbraid.store import RunFolder

    scores = [Score.from_record(line) for line in RunFolder(folder).read_lines("scores")]
    return {score.name: score.value for score in scores if score.has_default_settings and math.isfinite(score.value)}


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


def _describe(folder: Path, root: Path, settings: dict[str, Any] | None) -> dict[str, Any]:
    """Return the facts about a run or a sweep, for programs; `settings` are those that vary in its sweep."""
    name = "." if folder == root else folder.relative_to(root).as_posix()
    kind, describe = ("sweep", _describe_sweep) if (folder / "sweep.yaml").exists() else ("run", _describe_run)
    record = {"name": name, "kind": kind} | ({} if settings is None else {"settings": settings})
    try:
        return {**record, **describe(folder)}
    except UnbraidError as error:
        return {**record, "state": "damaged", "error": str(error)}


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
        "state": "interrupted" if status["state"] == "running" and not run.is_busy() else status["state"],
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
    swept = {key: "" if value is None else str(value) for key, value in record.get("settings", {}).items()}
    row |= {key: value for key, value in swept.items() if key not in (*row, "steps")}
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
