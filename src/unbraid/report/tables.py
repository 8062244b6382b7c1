"""Tables of a sweep: one row per member, and summaries over the seeds of each setting."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unbraid import atomic
from unbraid.metrics import Score
from unbraid.printable import format_setting as format_setting

RESAMPLES = 4000
LEVEL = 0.9
"""Confidence level of the intervals over seeds."""


class Member(NamedTuple):
    """A run of a sweep, with what tables and figures show of it."""

    run: str
    settings: Mapping[str, Any]
    state: str
    trouble: str
    scores: Mapping[str, Score]


class SeedGroup(NamedTuple):
    """Members that differ only in their seed."""

    settings: dict[str, Any]
    members: list[Member]

    @property
    def finished(self) -> int:
        """The number of finished members."""
        return len(select_finished(self.members))

    def values(self, score: str) -> list[float]:
        """Return the finite values of a score, one per finished member that has it."""
        return [member.scores[score].value for member in self.members if has_score(member, score)]

    def mean_interval(self, score: str) -> tuple[float, float] | None:
        """Return the 90% interval of the mean of a score, inside its range; None with fewer than two values."""
        found = next((member.scores[score] for member in self.members if has_score(member, score)), None)
        return None if found is None else mean_interval(self.values(score), found.bounds)


def select_finished(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.state == "finished"]


def has_score(member: Member, score: str) -> bool:
    """Return whether a member finished and has a finite value of a score."""
    return member.state == "finished" and score in member.scores and is_number(member.scores[score].value)


def hide_incomplete(members: Sequence[Member], *scores: str) -> list[Member]:
    """Return the members, without any scores if one of these is missing, so that no figure mixes different runs."""
    return [m if all(has_score(m, score) for score in scores) else m._replace(scores={}) for m in members]


def find_varying_settings(members: Sequence[Member]) -> list[str]:
    """Return the settings in which members differ, the recipe first and the seed last."""
    names = list(dict.fromkeys(key for member in members for key in member.settings))
    several = [n for n in names if len({format_setting(member.settings.get(n)) for member in members}) > 1]
    return sorted(several, key=lambda name: (name != "recipe", name == "seed"))


def list_values(members: Sequence[Member], key: str) -> list[Any]:
    """Return the distinct values of a setting: numbers in order, then words in their order of appearance."""
    values = list(dict.fromkeys(format_setting(member.settings.get(key)) for member in members))
    numbers = [value for value in values if is_number(value)]
    return sorted(numbers) + [value for value in values if not is_number(value)]


def list_scores(members: Sequence[Member]) -> list[str]:
    """Return the names of all scores of the members, in order of appearance."""
    return list(dict.fromkeys(name for member in members for name in member.scores))


def list_pairs(members: Sequence[Member], recipe: str, across: str, up: str) -> list[tuple[float, float]]:
    """Return the values of two scores, for each member of a recipe that has both."""
    chosen = [m for m in members if m.settings.get("recipe") == recipe and has_score(m, across) and has_score(m, up)]
    return [(m.scores[across].value, m.scores[up].value) for m in chosen]


def group_by_setting(members: Sequence[Member]) -> list[SeedGroup]:
    """Return groups of members that differ only in their seed, in the order of the settings' values."""
    keys = [key for key in find_varying_settings(members) if key != "seed"]
    ranks = {key: {value: rank for rank, value in enumerate(list_values(members, key))} for key in keys}
    groups: dict[tuple[str, ...], SeedGroup] = {}
    for member in members:
        shared = {key: member.settings.get(key) for key in keys}
        groups.setdefault(tuple(map(format_setting, shared.values())), SeedGroup(shared, [])).members.append(member)
    return sorted(groups.values(), key=lambda group: [ranks[key][format_setting(group.settings[key])] for key in keys])


def build_member_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Return the rows of table.csv: varying settings, run, status, and each score with its interval."""
    keys, names = find_varying_settings(members), list_scores(members)
    rows = []
    for member in members:
        row = {key: format_setting(member.settings.get(key)) for key in keys}
        row |= {"run": member.run, "status": member.state, "trouble": member.trouble}
        for name in names:
            score = member.scores.get(name)
            low, high = (score.interval if score and score.interval else None) or (None, None)
            row |= {name: score.value if score else None, f"{name} low": low, f"{name} high": high}
        rows.append(row)
    return rows


def build_summary_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Return the rows of summary.csv, one per setting and score, over seeds; the interval is that of the mean.

    A setting whose members all diverged has rows with count 0; a setting without scores has none.
    """
    rows = []
    for setting in group_by_setting(members):
        shown = {key: format_setting(value) for key, value in setting.settings.items()}
        diverged = sum(member.state == "diverged" for member in setting.members)
        for name in list_scores(members) or [None]:
            values = setting.values(name) if name else []
            if values or diverged == len(setting.members):
                counts = {"score": name, "count": len(values), "diverged": diverged}
                rows.append({**shown, **counts, **_summarise(values, setting.mean_interval(name) if name else None)})
    return rows


def _summarise(values: Sequence[float], interval: tuple[float, float] | None) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("median", "mean", "low", "high", "min", "max"))
    low, high = interval or (None, None)
    averages = {"median": float(np.median(values)), "mean": float(np.mean(values))}
    return {**averages, "low": low, "high": high, "min": min(values), "max": max(values)}


def build_median_rows(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per setting for a terminal: the number of finished runs, and medians of scores over seeds."""
    rows = []
    for setting in group_by_setting(members):
        row = {key: format_setting(value) for key, value in setting.settings.items()}
        done, total = setting.finished, len(setting.members)
        row["runs"] = f"{done}" if done == total else f"{done} of {total}"
        for name in scores:
            values = setting.values(name)
            note = "" if len(values) == done else f" ({len(values)} of {done})"
            row[f"median {name}"] = f"{np.median(values):.4g}{note}" if values else ""
        rows.append(row)
    return rows


def mean_interval(
    values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float] | None:
    """Return the 90% interval of the mean by Student's t, inside `bounds`; None with fewer than two values."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return None
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return max(mean - reach, min(bounds[0], mean)), min(mean + reach, max(bounds[1], mean))


def correlate(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float]] | None:
    """Return Pearson's correlation and its bootstrap 90% interval; None for a constant side or fewer than 3 pairs."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(x) < 3 or not (x.std() > 0 and y.std() > 0):
        return None
    drawn = np.random.default_rng(0).integers(0, len(x), (RESAMPLES, len(x)))
    low, high = np.nanquantile(pearson(x[drawn], y[drawn]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(pearson(x, y)), (float(low), float(high))


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the correlation over the last axis, or NaN if one of both does not vary."""
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    norm = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norm > 0, (x * y).sum(-1) / norm, np.nan)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(path, buffer.getvalue())


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Write rows as Parquet if pyarrow is installed; return whether it is."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        return False
    columns = {name: _one_type([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    with atomic.replacing(path) as part:
        parquet.write_table(arrow.table(columns), str(part))
    return True


def _one_type(column: list[Any]) -> list[Any]:
    """Return the column as text if it mixes words and numbers, since Parquet has one type per column."""
    has_words = any(isinstance(value, str) for value in column)
    return [None if value is None else str(value) for value in column] if has_words else column


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
