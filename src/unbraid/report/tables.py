"""Tables of a sweep: one row per member, and what the members of each setting have in common."""

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

RESAMPLES = 4000
LEVEL = 0.9
"""Of the intervals over seeds."""


class Member(NamedTuple):
    """A run of a sweep, as its tables and figures see it."""

    run: str
    settings: Mapping[str, Any]
    state: str
    trouble: str
    scores: Mapping[str, Score]


class Setting(NamedTuple):
    """Members that differ in their seed alone."""

    settings: dict[str, Any]
    members: list[Member]

    @property
    def finished(self) -> int:
        """Members that finished: as many values as a score should have."""
        return len(finished(self.members))

    def values(self, score: str) -> list[float]:
        """A score's finite values, one per finished member that has it."""
        return [member.scores[score].value for member in self.members if has(member, score)]


def finished(members: Sequence[Member]) -> list[Member]:
    """Members that reached their last step."""
    return [member for member in members if member.state == "finished"]


def has(member: Member, score: str) -> bool:
    """Whether a member finished and has a finite value of a score."""
    return member.state == "finished" and score in member.scores and is_number(member.scores[score].value)


def with_all(members: Sequence[Member], *scores: str) -> list[Member]:
    """The same members; those that lack one of these scores have none, so that no figure mixes different runs."""
    return [m if all(has(m, score) for score in scores) else m._replace(scores={}) for m in members]


def varying(members: Sequence[Member]) -> list[str]:
    """Settings in which members differ, the recipe first and the seed last."""
    names = list(dict.fromkeys(key for member in members for key in member.settings))
    several = [n for n in names if len({text(member.settings.get(n)) for member in members}) > 1]
    return sorted(several, key=lambda name: (name != "recipe", name == "seed"))


def values_of(members: Sequence[Member], key: str) -> list[Any]:
    """Different values of a setting: numbers by size, then words in the order in which they came."""
    values = list(dict.fromkeys(text(member.settings.get(key)) for member in members))
    numbers = [value for value in values if is_number(value)]
    return sorted(numbers) + [value for value in values if not is_number(value)]


def score_names(members: Sequence[Member]) -> list[str]:
    """Every score that some member has, in the order of their first measurement."""
    return list(dict.fromkeys(name for member in members for name in member.scores))


def settings_of(members: Sequence[Member]) -> list[Setting]:
    """Members by everything that varies but the seed, in the order of the settings' values."""
    keys = [key for key in varying(members) if key != "seed"]
    ranks = {key: {value: rank for rank, value in enumerate(values_of(members, key))} for key in keys}
    groups: dict[tuple[str, ...], Setting] = {}
    for member in members:
        own = {key: member.settings.get(key) for key in keys}
        groups.setdefault(tuple(map(text, own.values())), Setting(own, [])).members.append(member)
    return sorted(groups.values(), key=lambda setting: [ranks[key][text(setting.settings[key])] for key in keys])


def member_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Rows of table.csv: settings that vary, run, status, and each score with its interval."""
    keys, names = varying(members), score_names(members)
    rows = []
    for member in members:
        row = {key: text(member.settings.get(key)) for key in keys}
        row |= {"run": member.run, "status": member.state, "trouble": member.trouble}
        for name in names:
            score = member.scores.get(name)
            low, high = (score.interval if score and score.interval else None) or (None, None)
            row |= {name: score.value if score else None, f"{name} low": low, f"{name} high": high}
        rows.append(row)
    return rows


def summary_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Rows of summary.csv: one per setting and score, over seeds; the interval is of the mean, by Student's t.

    A setting all of whose members diverged has rows, too, of count 0; one that nobody has scored yet has none.
    """
    rows = []
    for setting in settings_of(members):
        own = {key: text(value) for key, value in setting.settings.items()}
        diverged = sum(member.state == "diverged" for member in setting.members)
        for name in score_names(members) or [None]:
            values = setting.values(name) if name else []
            if values or diverged == len(setting.members):
                facts = {"score": name, "count": len(values), "diverged": diverged}
                rows.append({**own, **facts, **_distribution(values)})
    return rows


def _distribution(values: Sequence[float]) -> dict[str, float | None]:
    """Middle, interval and extremes; all of them empty without a value."""
    if not values:
        return dict.fromkeys(("median", "mean", "low", "high", "min", "max"))
    low, high = mean_interval(values) or (None, None)
    middle = {"median": float(np.median(values)), "mean": float(np.mean(values))}
    return {**middle, "low": low, "high": high, "min": min(values), "max": max(values)}


def median_rows(members: Sequence[Member], scores: Sequence[str]) -> list[dict[str, Any]]:
    """One row per setting for a terminal: how many runs finished, and the median of scores over those with them."""
    rows = []
    for setting in settings_of(members):
        row = {key: text(value) for key, value in setting.settings.items()}
        row["runs"] = _of(setting.finished, len(setting.members))
        for name in scores:
            values = setting.values(name)
            several = "" if len(values) == setting.finished else f" ({_of(len(values), setting.finished)})"
            row[name] = f"{np.median(values):.4g}{several}" if values else ""
        rows.append(row)
    return rows


def _of(some: int, of_all: int) -> str:
    return f"{some}" if some == of_all else f"{some} of {of_all}"


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """90% interval of the mean by Student's t, since seeds are few; None where there is only one."""
    from scipy.stats import t

    if len(values) < 2:
        return None
    reach = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - reach, float(np.mean(values)) + reach


def correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float]] | None:
    """Pearson's correlation of pairs, with a 90% interval by resampling the pairs; None where it has no meaning."""
    pairs = np.stack([np.asarray(first, dtype=float), np.asarray(second, dtype=float)], -1)
    if len(pairs) < 3 or not (pairs.std(0) > 0).all():
        return None
    interval = bootstrap(pairs, _pearson)
    return float(_pearson(pairs)), interval or (math.nan, math.nan)


def bootstrap(rows: np.ndarray, statistic: Any) -> tuple[float, float] | None:
    """The middle 90% of a statistic over rows drawn again with replacement; the same every time it is asked."""
    if len(rows) < 2:
        return None
    drawn = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    made = statistic(rows[drawn])
    low, high = np.nanquantile(made, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _pearson(pairs: np.ndarray) -> np.ndarray:
    """Correlation of pairs [..., n, 2]; NaN where a resample holds one pair only."""
    centred = pairs - pairs.mean(-2, keepdims=True)
    norms = np.sqrt((centred**2).sum(-2)).prod(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norms > 0, centred.prod(-1).sum(-1) / norms, np.nan)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV; what is missing stays empty."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic.write_text(path, buffer.getvalue())


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Rows as Parquet where pyarrow is here; returns whether it is."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        return False
    columns = {name: _one_type([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    with atomic.replacing(path) as part:
        parquet.write_table(arrow.table(columns), str(part))
    return True


def _one_type(column: list[Any]) -> list[Any]:
    """A column of Parquet has one type: words beside numbers make words of them all."""
    words = any(isinstance(value, str) for value in column)
    return [None if value is None else str(value) for value in column] if words else column


def text(value: Any) -> Any:
    """A setting as a table shows it: numbers and words as they are, lists as on the command line."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(str(text(part)) for part in value)}]"
    return "none" if value is None else value


def is_number(value: Any) -> bool:
    """Whether a value has a place on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
