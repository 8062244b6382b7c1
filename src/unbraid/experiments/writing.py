"""The files of an experiment: tables, scores of each run, figure, verdicts, and a README.md that shows them."""

import csv
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbraid import atomic
from unbraid._version import __version__
from unbraid.config import FORMAT
from unbraid.errors import UsageError
from unbraid.experiments.base import REFINES, SCALES, Experiment, Scale
from unbraid.experiments.claims import Claim, Verdict
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.experiments.statistics import Estimate, cell_means, estimate, mean_difference
from unbraid.metrics.score import NETWORK, WEIGHTS
from unbraid.registry import Entry
from unbraid.report.svg import figure_style
from unbraid.report.tables import SeedGroup, format_setting, has_score, list_scores, write_csv
from unbraid.training.environment import describe_environment

RULE = (
    "A claim *holds* if the 90% bootstrap interval of each of its estimates lies in the range it states, *does not "
    "hold* if one lies completely outside (of k estimates, at the level 1 - .1 / k or more) or if a difference is too "
    "small to be seen: fewer than two of three choices of one seed per setting show its sign, by the interval of their "
    "share. Otherwise it is *inconclusive*, as with fewer than 3 seeds, or if its estimates had "
    "not settled: if as many steps again, at the pace at which they moved in the last fifth of training, would change "
    "the verdict, and no runs of twice the steps confirm it, or if such runs give the opposite verdict. Runs "
    "with as many steps as the paper or its authors' code states are not asked to settle. Where a claim got further "
    "seeds, its intervals have the level 1 - .1 / k at the k-th look."
)

OPEN_SETTINGS = "Where a paper leaves a setting open, scale `paper` has a choice of ours; the notes below say which."
FIGURE_DPI = 150
AT_SNAPSHOT = " at 4/5"
"""Suffix of a score of the snapshot that a run keeps at 4/5 of its steps."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Provenance:
    """The origin of results."""

    command: str
    scale: str
    minutes: float
    runs: int
    device: torch.device

    def as_record(self) -> dict[str, Any]:
        """Return a plain mapping for verdicts.json."""
        facts = describe_environment(self.device)
        versions = {key: facts[key] for key in ("unbraid", "python", "torch", "numpy")}
        record = {"command": self.command, "scale": self.scale, "commit": find_commit(), "versions": versions}
        return {**record, "device": facts["device_name"], "minutes": self.minutes, "runs": self.runs}


def find_commit() -> str:
    """Return the commit of this checkout, marked if files have changed since.

    Outside a checkout, return the value of `UNBRAID_COMMIT`, or else the version.
    """
    tracked = Path(__file__).parents[1] / "_version.py"

    def git(*words: str) -> str:
        command = ["git", "-C", str(tracked.parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", tracked.name)
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("UNBRAID_COMMIT") or f"version {__version__}"


def refuse_smaller_scale(folder: Path, scale: str, record: str = "verdicts.json") -> None:
    """Raise if `folder` holds results of a larger scale, by their `record`."""
    stored = folder / record
    try:
        present = json.loads(stored.read_text(encoding="utf-8"))["scale"] if stored.exists() else scale
        larger = SCALES.index(present) > SCALES.index(scale)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{stored} is no record of results; choose another place with --out.") from error
    if larger:
        raise UsageError(f"{folder} holds results at scale {present}; choose another place for {scale} with --out.")


def refuse_fewer_seeds(folder: Path, facts: Experiment, scale: str) -> None:
    """Raise if `folder` holds results of this scale with seeds that these, of an experiment with these facts, lack."""
    try:
        if json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))["scale"] != scale:
            return
        with (folder / "runs.csv").open(newline="", encoding="utf-8") as handle:
            stored = {int(row["seed"]) for row in csv.DictReader(handle)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return  # no results are lost
    planned = {seed for settings in facts.build_sweeps(scale).values() for seed in settings.get("seed", ())}
    if planned and (lost := stored - planned):
        raise UsageError(
            f"{folder} holds results with seeds that these would lack, such as {max(lost)}. "
            f"Give --seeds {max(stored) + 1}, or choose another place with --out."
        )


def refuse_replacing_whole(folder: Path, command: str, record: str = "verdicts.json") -> None:
    """Raise if `folder` holds results of a command that is not this one, which trains a part of the experiment."""
    try:
        stored = str(json.loads((folder / record).read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # no results are lost
    if stored != command and not stored.startswith((f"{command} --device ", f"{command} --runs ")):
        raise UsageError(f"{folder} holds the results of '{stored}'; choose another place for a part with --out.")


def read_looks(record: Mapping[str, Any], claims: Iterable[Claim]) -> dict[str, int]:
    """Return how often claims were judged by a stored record; older records have one number for all.

    A claim that it does not have may be another one in other words, so it counts as often as any of them.
    """
    known = {each["claim"]: each.get("looks", record.get("looks", 1)) for each in record["verdicts"]}
    most = max(known.values(), default=1)
    return {claim.text: known.get(claim.text, most) for claim in claims}


def count_looks(folder: Path, scale: str, runs: int, claims: Iterable[Claim]) -> dict[str, int]:
    """Return how often claims have been judged with this time, if a folder holds an earlier judgement of fewer runs."""
    try:
        stored = json.loads((folder / "verdicts.json").read_text("utf-8"))
        before, at = read_looks(stored, claims), (stored["scale"], stored["runs"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # nothing has been judged here
    return {} if at[0] != scale else {claim: looks + (runs > at[1]) for claim, looks in before.items()}


def write_results(
    folder: Path,
    entry: Entry[Any, Experiment],
    results: Results,
    verdicts: Sequence[Verdict],
    provenance: Provenance,
    notes: Sequence[str],
) -> list[str]:
    """Write all files, each whole or not at all. Return notes about files that could not be written."""
    if folder.is_dir():
        atomic.remove_partial_files(folder)
    rows = build_table(entry.facts, results)
    skipped = _draw(folder / "figure.png", entry, results)
    write_csv(folder / "table.csv", [_flat(row) for row in rows])
    write_csv(folder / "runs.csv", list_runs(results))
    atomic.write_text(folder / "table.md", format_markdown(rows))
    record = {"format": FORMAT, "experiment": entry.name, **provenance.as_record()}
    record |= {"networks": networks} if (networks := list_networks(results)) else {}
    record["verdicts"] = [verdict.as_record() for verdict in verdicts]
    page = _format_page(entry, results, verdicts, record, rows, [*notes, *skipped])
    atomic.write_text(folder / "README.md", page)
    atomic.write_text(folder / "verdicts.json", json.dumps(record, indent=2) + "\n")
    return skipped


def _draw(path: Path, entry: Entry[Any, Experiment], results: Results) -> list[str]:
    try:
        with figure_style() as make:
            figure = entry.make(results, make)
            with atomic.replacing(path) as part:
                figure.savefig(part, format="png", dpi=FIGURE_DPI, facecolor="white", metadata={"Software": None})
    except (UsageError, MissingResultsError) as error:  # a missing extra or score must not cost the verdicts
        return [f"figure.png is left out: {error}"]
    return []


def build_table(facts: Experiment, results: Results) -> list[Row]:
    """Return one row per series and setting: the number of finished runs and the mean of each score."""
    rows: list[Row] = []
    keys = list(dict.fromkeys(key for member in results.members for key in member.settings))
    keys = [key for key in keys if key not in ("recipe", "seed")]
    for setting in results.settings:
        settings = setting.members[0].settings
        series = settings["recipe"]
        count = f"{setting.finished} of {len(setting.members)}"
        row: Row = {"series": series, **{key: format_setting(settings.get(key)) for key in keys}}
        row["runs"] = count if setting.finished < len(setting.members) else setting.finished
        for score in facts.scores:
            row[score] = _mean(setting.values(score), results.find_bounds(score))
            if any(score in published for published in facts.published.values()):
                row[f"{score} (paper)"] = facts.published.get(series, {}).get(score, "")
        rows.append(row)
    return rows + (_differences(facts, results, keys) if facts.contrast else [])


def list_runs(results: Results) -> list[Row]:
    """Return one row per run: its settings, state and scores, and the scores of its snapshot.

    With these numbers anyone can judge the claims again.
    """
    keys = dict.fromkeys(key for member in results.members for key in member.settings if key != "recipe")
    scores, earlier = list_scores(results.members), results.earlier
    snapshots = {member.run: member.scores for member in earlier.members} if earlier else {}
    columns = [("", {member.run: member.scores for member in results.members})]
    columns += [(AT_SNAPSHOT, snapshots)] if snapshots else []
    rows: list[Row] = []
    for member in results.members:
        settings = {key: format_setting(member.settings.get(key)) for key in keys}
        row: Row = {"series": member.settings["recipe"], **settings, "state": member.state}
        for suffix, found in columns:
            of_run = found.get(member.run, {})
            row |= {f"{score}{suffix}": of_run[score].value if score in of_run else None for score in scores}
        rows.append(row)
    return rows


def list_networks(results: Results) -> dict[str, list[str]]:
    """Return the weights of the feature networks that helped to measure each score, by its name or digest.

    Scores that no such network measured are left out.
    """
    found: dict[str, set[str]] = {}
    for member in results.members:
        for name, score in member.scores.items():
            if known := score.details.get(NETWORK, {}).get(WEIGHTS):
                found.setdefault(name, set()).add(known)
    return {name: sorted(weights) for name, weights in sorted(found.items())}


def _differences(facts: Experiment, results: Results, keys: Sequence[str]) -> list[Row]:
    """Return rows of one series minus another, for settings that both have."""
    first, second = facts.contrast or ("", "")
    difference = _paired_difference if facts.series[second].get(REFINES) == first else _difference
    by = {tuple(format_setting(s.members[0].settings.get(k)) for k in ("recipe", *keys)): s for s in results.settings}
    rows: list[Row] = []
    for at in [key[1:] for key in by if key[0] == first and (second, *key[1:]) in by]:
        row: Row = {"series": f"{second} minus {first}", **dict(zip(keys, at, strict=True)), "runs": ""}
        rows.append(row | {score: difference(by[(first, *at)], by[(second, *at)], score) for score in facts.scores})
    return rows


def _difference(first: SeedGroup, second: SeedGroup, score: str) -> Estimate | None:
    cells = {place: np.array(group.values(score))[:, None] for place, group in enumerate((first, second))}
    present = all(len(values) for values in cells.values())
    return estimate(cells, lambda drawn: mean_difference(drawn, 0, 1)) if present else None


def _paired_difference(first: SeedGroup, second: SeedGroup, score: str) -> Estimate | None:
    """Return the mean difference between stages and the runs that they refine; other runs may have further seeds."""
    before, after = ({m.settings["seed"]: m for m in group.members if has_score(m, score)} for group in (first, second))
    gaps = [run.scores[score].value - before[seed].scores[score].value for seed, run in after.items() if seed in before]
    return _mean(gaps, (-math.inf, math.inf))


def _mean(values: Sequence[float], bounds: tuple[float, float]) -> Estimate | None:
    cells = {0: np.array(values, dtype=float)[:, None]}
    return estimate(cells, lambda drawn: cell_means(drawn)[..., 0, 0]).within(*bounds) if values else None


def _flat(row: Mapping[str, Any]) -> Row:
    """Return the row with each estimate as three columns."""
    flat: Row = {}
    for key, value in row.items():
        if isinstance(value, Estimate) or value is None:
            ends = value or Estimate(math.nan, math.nan, math.nan)
            numbers = [None if math.isnan(number) else number for number in ends[:3]]
            flat |= dict(zip((key, f"{key} low", f"{key} high"), numbers, strict=True))
        else:
            flat[key] = value
    return flat


def format_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; its columns are the keys of all rows."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [names, ["---"] * len(names)]
    lines += [["" if row.get(name) is None else str(row[name]).replace("|", "\\|") for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_page(
    entry: Entry[Any, Experiment],
    results: Results,
    verdicts: Sequence[Verdict],
    record: Mapping[str, Any],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    origin = f"{record['minutes']:.1f} minutes on {record['device']}, commit {record['commit']} ({versions})"
    runs = f", {record['runs']} runs" if record["runs"] else ""
    words = [{"claim": v.claim, "verdict": f"**{v.verdict}**", "why": v.why} for v in verdicts]
    parts = [
        f"# {entry.name}: {entry.summary}",
        f"    {record['command']}",
        f"Scale `{results.scale}`{runs}, {origin}.",
        format_markdown(words),
        RULE,
        "## Results\n\nMeans over seeds with 90% bootstrap intervals, widened where there are few seeds.",
        format_markdown(rows),
        "" if any(note.startswith("figure.png") for note in notes) else "![figure](figure.png)",
        "## Settings",
        OPEN_SETTINGS,
        format_markdown(_compare_settings(entry.facts, results.scale)),
        "\n".join(f"- {note}" for note in notes),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _compare_settings(facts: Experiment, scale: str) -> list[Row]:
    """Return rows of settings here and in the paper, first the shared ones, then those of each series.

    A shared setting that every series replaces belongs to no run, so it has no row.
    """

    def own(at: Scale, name: str) -> dict[str, Any]:
        return {**facts.series[name], **at.per_series.get(name, {})}

    def shared(at: Scale) -> dict[str, Any]:
        firsts = [own(at, name) for name, settings in facts.series.items() if REFINES not in settings]
        return {key: value for key, value in at.settings.items() if not firsts or any(key not in o for o in firsts)}

    parts: list[tuple[str, Callable[[Scale], dict[str, Any]]]] = [("", shared)]
    parts += [(f"{name}: ", partial(own, name=name)) for name in facts.series]
    rows = []
    for title, of in parts:
        here = of(facts.get_scale(scale))
        paper = of(facts.scales["paper"]) if "paper" in facts.scales else {}
        for key in dict.fromkeys([*here, *paper]):
            row = {
                "setting": f"{title}{key}",
                "here": _format_setting(here.get(key)),
                "at `paper`": _format_setting(paper.get(key)),
            }
            rows.append({**row, "share": _format_share(here.get(key), paper.get(key))})
    return rows


def _format_setting(value: Any) -> str:
    if isinstance(value, range):
        return f"{value.start}..{value.stop - 1}"
    return "" if value is None else str(format_setting(value))


def _format_share(here: Any, paper: Any) -> str:
    """Return the number here as a share of the paper's, for steps, seeds and the like."""
    sizes = [len(value) if isinstance(value, (list, range)) else value for value in (here, paper)]
    numbers = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    return f"{100 * sizes[0] / sizes[1]:.3g}%" if numbers and sizes[1] and sizes[0] != sizes[1] else ""
