"""Results of an experiment: its finished runs with their scores, and how claims, tables and figures ask for them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unbraid.errors import UnbraidError
from unbraid.experiments.model_cache import ModelCache
from unbraid.metrics import Evaluation, Score
from unbraid.metrics.score import DERIVED, NETWORK
from unbraid.report.tables import Member, SeedGroup, group_by_setting, has_score


class MissingResultsError(UnbraidError):
    """The results lack scores, runs or models that a claim or figure needs."""


@dataclass(frozen=True)
class Results:
    """Scores of all runs; a member's setting `recipe` holds the name of its series."""

    members: tuple[Member, ...]
    scale: str = "small"
    unchecked: frozenset[str] = frozenset()
    """Runs that were shorter than the paper's and have no snapshot, so that nobody knows if their scores settled."""
    models: ModelCache | None = None
    earlier: "Results | None" = None
    """The same runs before the last fifth of training; None if all of them are as long as the paper's."""
    whole: "Results | None" = None
    """The finished runs, if these are their snapshots: a stage refines a finished run, at its own snapshot, too."""
    longer: "Results | None" = None
    """Runs of the same series with twice the steps (see `settling.py`)."""
    looks: Mapping[str, int] = field(default_factory=dict)
    """How often each claim was judged, with this time: once more whenever it got further seeds. 1 if it is not here."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest possible values of scores whose metric states none, by score."""

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(member.settings["recipe"] for member in self.members))

    @property
    def settings(self) -> list[SeedGroup]:
        """Members grouped by series and every setting that varies, except the seed."""
        return group_by_setting(self.members)

    @property
    def seeds(self) -> int:
        """Number of finished runs of the setting that has the fewest."""
        return min((setting.finished for setting in self.settings), default=0)

    def group_scores(self, series: str, key: str | None, *scores: str) -> dict[Any, np.ndarray]:
        """Return scores [seed, score] of the finished runs of a series, by the value of the setting `key`.

        With `key=None` all of them are under None.
        """
        groups: dict[Any, list[list[float]]] = {}
        for member in self.select_members(series, *scores):
            value = None if key is None else member.settings[key]
            groups.setdefault(value, []).append([member.scores[score].value for score in scores])
        return {value: np.array(groups[value]) for value in sorted(groups, key=lambda v: (str(type(v)), v))}

    def find_bounds(self, score: str) -> tuple[float, float]:
        """Return the range of a score as the experiment or its metric states it; infinite ends if neither does."""
        found = next((m.scores[score].bounds for m in self.members if score in m.scores), (-math.inf, math.inf))
        return self.ranges.get(score, found)

    def select_members(self, series: str, *scores: str) -> list[Member]:
        """Return the finished runs of a series that have all of these scores."""
        found = [
            m for m in self.members if m.settings["recipe"] == series and all(has_score(m, score) for score in scores)
        ]
        if not found:
            raise MissingResultsError(f"no finished run of {series} has {' and '.join(scores)}")
        return found

    def select_best(self, series: str, score: str) -> Member:
        return max(self.select_members(series, score), key=lambda member: member.scores[score].value)

    def load_evaluation(self, member: Member) -> Evaluation:
        if self.models is None:
            raise MissingResultsError("these results are scores without models")
        return self.models.load_evaluation(member.run)


def make_member(series: str, seed: int, values: Mapping[str, float], samples: int) -> Member:
    """Return a finished member with scores named METRIC/PROTOCOL, for an experiment that trains nothing."""
    parts = {name: name.partition("/") for name in values}
    scores = {name: Score(metric, protocol, values[name], samples) for name, (metric, _, protocol) in parts.items()}
    return Member(f"{series}, {seed}", {"recipe": series, "seed": seed}, "finished", "", scores)


def derive(name: str, part: str, compute: Callable[[Score], float]) -> Callable[[Mapping[str, Score]], Score]:
    """Return a function that computes a further score of a run from its score `name`."""

    def score(scores: Mapping[str, Score]) -> Score:
        source = scores[name]
        details = {DERIVED: name, **{key: source.details[key] for key in (NETWORK,) if key in source.details}}
        return Score(source.metric, source.protocol, float(compute(source)), source.samples, part=part, details=details)

    return score
