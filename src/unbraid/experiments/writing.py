"""What an experiment leaves behind: table.md, table.csv, figure.png, verdicts.json and a README.md that has it all."""

import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbraid import atomic
from unbraid._version import __version__
from unbraid.config import FORMAT
from unbraid.errors import UsageError
from unbraid.experiments.base import SCALES, Experiment, MissingResultsError, Results, Verdict
from unbraid.experiments.statistics import Estimate, cell_means, estimate, mean_difference
from unbraid.registry import Entry
from unbraid.report.svg import drawing
from unbraid.report.tables import text, write_csv
from unbraid.training.environment import describe_environment

RULE = (
    "A claim *holds* if the 90% bootstrap interval of each of its estimates lies where it puts it, *does not hold* if "
    "one lies wholly elsewhere, and is *inconclusive* otherwise, with fewer than 3 seeds, or if more than a tenth of "
    "the runs had not settled (neither as many steps as the paper's, nor a mean loss that changed by less than 2% from "
    "the fourth to the last fifth of training)."
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Provenance:
    """How results came about."""

    command: str
    scale: str
    minutes: float
    runs: int
    trained: int
    device: torch.device

    def as_record(self) -> dict[str, Any]:
        """Plain mapping for verdicts.json."""
        facts = describe_environment(self.device)
        versions = {key: facts[key] for key in ("unbraid", "python", "torch", "numpy")}
        record = {"command": self.command, "scale": self.scale, "commit": find_commit(), "versions": versions}
        return {**record, "device": facts["device_name"], "minutes": self.minutes, "runs": self.runs}


def find_commit() -> str:
    """The commit of this checkout, with a mark where files have changed since.

    Elsewhere `UNBRAID_COMMIT` may name the one that was copied; without it, it is the version.
    """
    known = Path(__file__).parents[1] / "_version.py"
    try:
        git = ["git", "-C", str(known.parent)]
        subprocess.run([*git, "ls-files", "--error-unmatch", known.name], check=True, capture_output=True)
        told = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("UNBRAID_COMMIT") or f"version {__version__}"
    return told.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def refuse_smaller_scale(folder: Path, scale: str) -> None:
    """Results of a larger scale are not written over by those of a smaller one."""
    stored = folder / "verdicts.json"
    try:
        there = json.loads(stored.read_text(encoding="utf-8"))["scale"] if stored.exists() else scale
        larger = SCALES.index(there) > SCALES.index(scale)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{stored} is no file of verdicts; choose another place with --out.") from error
    if larger:
        raise UsageError(f"{folder} holds results at scale {there}; choose another place for {scale} with --out.")


def write_results(
    folder: Path,
    entry: Entry[Any, Experiment],
    facts: Experiment,
    results: Results,
    verdicts: Sequence[Verdict],
    where: Provenance,
    notes: Sequence[str],
) -> list[str]:
    """Write everything, each file whole or not at all; returns notes about what was left out."""
    rows = build_table(facts, results)
    more = _draw(folder / "figure.png", entry, results)
    write_csv(folder / "table.csv", [_flat(row) for row in rows])
    atomic.write_text(folder / "table.md", format_markdown(rows))
    record = {"format": FORMAT, "experiment": entry.name, **where.as_record()}
    record["verdicts"] = [verdict.as_record() for verdict in verdicts]
    page = _page(entry, facts, results, verdicts, record, rows, [*notes, *more])
    atomic.write_text(folder / "README.md", page)
    atomic.write_text(folder / "verdicts.json", json.dumps(record, indent=2) + "\n")
    return more


def _draw(path: Path, entry: Entry[Any, Experiment], results: Results) -> list[str]:
    try:
        with drawing() as make:
            figure = entry.make(results, make)
            with atomic.replacing(path) as part:
                figure.savefig(part, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    except (
        UsageError,
        MissingResultsError,
    ) as error:  # what is not here, an extra or a score, must not cost the verdicts
        return [f"figure.png is left out: {error}"]
    return []


# the table


def build_table(facts: Experiment, results: Results) -> list[Row]:
    """One row per series and setting: how many runs finished, and the mean of each score with its 90% interval."""
    rows: list[Row] = []
    keys = list(dict.fromkeys(key for member in results.members for key in member.settings))
    keys = [key for key in keys if key not in ("recipe", "seed")]
    for setting in results.settings:
        own = setting.members[0].settings
        series = own["recipe"]
        count = f"{setting.finished} of {len(setting.members)}"
        row: Row = {"series": series, **{key: text(own.get(key)) for key in keys}}
        row["runs"] = count if setting.finished < len(setting.members) else setting.finished
        for score in facts.scores:
            row[score] = _mean(setting.values(score))
            if any(score in published for published in facts.published.values()):
                row[f"{score} (paper)"] = facts.published.get(series, {}).get(score, "")
        rows.append(row)
    return rows + (_differences(facts, results, keys) if facts.contrast else [])


def _differences(facts: Experiment, results: Results, keys: Sequence[str]) -> list[Row]:
    """Rows of one series minus another, for settings that both have."""
    first, second = facts.contrast or ("", "")
    by = {tuple(text(s.members[0].settings.get(k)) for k in ("recipe", *keys)): s for s in results.settings}
    rows: list[Row] = []
    for at in [key[1:] for key in by if key[0] == first and (second, *key[1:]) in by]:
        row: Row = {"series": f"{second} minus {first}", **dict(zip(keys, at, strict=True)), "runs": ""}
        for score in facts.scores:
            cells = {name: np.array(by[(name, *at)].values(score), dtype=float)[:, None] for name in (first, second)}
            there = all(len(values) for values in cells.values())
            row[score] = estimate(cells, lambda c: mean_difference(c, first, second)) if there else None
        rows.append(row)
    return rows


def _mean(values: Sequence[float]) -> Estimate | None:
    cells = {0: np.array(values, dtype=float)[:, None]}
    return estimate(cells, lambda drawn: cell_means(drawn)[..., 0, 0]) if values else None


def _flat(row: Mapping[str, Any]) -> Row:
    """An estimate as three columns."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Estimate) or value is None:
            ends = value or Estimate(math.nan, math.nan, math.nan)
            numbers = [None if math.isnan(number) else number for number in ends]
            flat |= dict(zip((key, f"{key} low", f"{key} high"), numbers, strict=True))
        else:
            flat[key] = value
    return flat


def format_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table of Markdown; columns are those of the first row and whatever others add."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [names, ["---"] * len(names)]
    lines += [["" if row.get(name) is None else str(row[name]).replace("|", "\\|") for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# the page


def _page(
    entry: Entry[Any, Experiment],
    facts: Experiment,
    results: Results,
    verdicts: Sequence[Verdict],
    record: Mapping[str, Any],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    made = f"{record['minutes']:.1f} minutes on {record['device']}, commit {record['commit']} ({versions})"
    runs = f", {record['runs']} runs" if record["runs"] else ""
    words = [{"claim": v.claim, "verdict": f"**{v.verdict}**", "why": v.why} for v in verdicts]
    parts = [
        f"# {entry.name}: {entry.summary}",
        f"    {record['command']}",
        f"Scale `{results.scale}`{runs}, {made}.",
        format_markdown(words),
        RULE,
        "## Results\n\nMeans over seeds with 90% intervals (by the bootstrap, as wide as so few seeds ask for).",
        format_markdown(rows),
        "![figure](figure.png)",
        "## Settings",
        format_markdown(_settings(facts, results.scale)),
        "\n".join(f"- {note}" for note in notes),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _settings(facts: Experiment, scale: str) -> list[Row]:
    """Settings here and in the paper, for all series and for each alone."""
    parts = [("", lambda at: at.settings)]
    parts += [
        (f"{name}: ", lambda at, n=name: {**facts.series[n], **at.per_series.get(n, {})}) for name in facts.series
    ]
    rows = []
    for title, of in parts:
        here = of(facts.get_scale(scale))
        paper = of(facts.scales["paper"]) if "paper" in facts.scales else {}
        for key in dict.fromkeys([*here, *paper]):
            row = {"setting": f"{title}{key}", "here": _told(here.get(key)), "paper": _told(paper.get(key))}
            rows.append({**row, "share": _share(here.get(key), paper.get(key))})
    return rows


def _told(value: Any) -> str:
    if isinstance(value, range):
        return f"{value.start}..{value.stop - 1}"
    return "" if value is None else str(text(value))


def _share(here: Any, paper: Any) -> str:
    """How much of the paper's number there is, for steps and the like."""
    sizes = [len(value) if isinstance(value, (list, range)) else value for value in (here, paper)]
    numbers = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    return f"{100 * sizes[0] / sizes[1]:.3g}%" if numbers and sizes[1] and sizes[0] != sizes[1] else ""
