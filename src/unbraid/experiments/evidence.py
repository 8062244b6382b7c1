"""Evidence that several experiments ask for: trade-offs, correlations, differences, and the lack of any.

Each function takes what it is about and returns a function from results to evidence, as a claim has it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.experiments.base import Evidence, Results
from unbraid.experiments.statistics import (
    Cells,
    Estimate,
    cell_means,
    estimate,
    gap_at_equal_x,
    mean_difference,
    pearson,
)
from unbraid.report.tables import Member

Finding = Callable[[Results], list[Evidence]]
NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)


def group_series(results: Results, series: Sequence[str], key: str | None, *scores: str) -> dict[Any, np.ndarray]:
    """Cells of several series by (series, setting), of the settings that all of them have."""
    found = {name: results.group_scores(name, key, *scores) for name in series}
    common = [at for at in found[series[0]] if all(at in cells for cells in found.values())]
    return {(name, at): found[name][at] for name in series for at in common}


def mean_curve(cells: Cells, series: str) -> np.ndarray:
    """Means [..., setting, score] of the cells of one series, whose keys are (series, setting)."""
    return cell_means({key: rows for key, rows in cells.items() if key[0] == series})


def compare_trade_offs(first: str, second: str, key: str, across: str, up: str) -> Finding:
    """The second series is higher at equal `across`, on average over what both reach."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {
            **group_series(results, (first,), key, across, up),
            **group_series(results, (second,), key, across, up),
        }
        found = estimate(cells, lambda c: gap_at_equal_x(mean_curve(c, first), mean_curve(c, second)))
        return [Evidence(f"{up} at equal {across}, {second} minus {first}", found, low=0.0)]

    return evidence


def compare_with_largest(series: str, key: str, mode: int | float, score: str) -> Finding:
    """A score is lower at the largest value of a setting than at its mode."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores(series, key, score)
        most = max(cells)
        found = estimate(cells, lambda c: mean_difference(c, mode, most)) if mode in cells else NO_ESTIMATE
        return [Evidence(f"{score} of {series}, {key} {most} minus {key} {mode:g}", found, high=0.0)]

    return evidence


def compare_settings(
    series: str, key: str, start: int | float, end: int | float, score: str, **where: float
) -> Finding:
    """How a score changes from one value of a setting to another."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores(series, key, score)
        found = (
            estimate(cells, lambda c: mean_difference(c, start, end)) if {start, end} <= cells.keys() else NO_ESTIMATE
        )
        return [Evidence(f"{score}, {key} {end:g} minus {key} {start:g}", found, **where)]

    return evidence


def correlate_means(series: str) -> Callable[[Cells], np.ndarray]:
    """Pearson's correlation of the means of two scores over settings."""
    return lambda cells: pearson(mean_curve(cells, series)[..., 0], mean_curve(cells, series)[..., 1])


def correlate_scores(series: str, key: str, first: str, second: str, **where: float) -> Finding:
    """Two scores of a series are correlated over a setting."""

    def evidence(results: Results) -> list[Evidence]:
        found = estimate(group_series(results, (series,), key, first, second), correlate_means(series))
        return [Evidence(f"correlation of {first} and {second}, {series}", found, **where)]

    return evidence


def compare_correlations(weak: str, strong: str, key: str, first: str, second: str) -> Finding:
    """Two scores have a lower correlation in one series than in another."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {
            **group_series(results, (weak,), key, first, second),
            **group_series(results, (strong,), key, first, second),
        }
        found = estimate(cells, lambda c: correlate_means(strong)(c) - correlate_means(weak)(c))
        return [Evidence(f"correlation of {first} and {second}, {strong} minus {weak}", found, high=0.0)]

    return evidence


def bound_difference(
    first: str, second: str, key: str, *, absolute: dict[str, float], relative: dict[str, float]
) -> Finding:
    """Two series have the same scores, on average over a setting, within an absolute or a relative distance."""
    scores = [*absolute, *relative]

    def evidence(results: Results) -> list[Evidence]:
        cells, made = group_series(results, (first, second), key, *scores), []
        for k, score in enumerate(scores):
            found = estimate(cells, lambda c, k=k: (mean_curve(c, second) - mean_curve(c, first))[..., k].mean(-1))
            size = abs(float(mean_curve(cells, first)[:, k].mean()))
            room = absolute[score] if score in absolute else relative[score] * size
            made.append(Evidence(f"{score}, {second} minus {first}, mean over {key}", found, -room, room))
        return made

    return evidence


def compare_means(first: str, second: str, score: str, **where: float) -> Finding:
    """Mean over seeds of one series minus that of another."""
    return _apart(first, second, score, np.mean, "", where)


def compare_medians(first: str, second: str, score: str, **where: float) -> Finding:
    """Median over seeds of one series minus that of another."""
    return _apart(first, second, score, np.median, "median ", where)


def _apart(
    first: str, second: str, score: str, middle: Callable[..., Any], word: str, where: Mapping[str, float]
) -> Finding:
    def evidence(results: Results) -> list[Evidence]:
        cells = {name: results.group_scores(name, None, score)[None] for name in (first, second)}

        def gap(drawn: Cells) -> np.ndarray:
            return middle(drawn[second][..., 0], axis=-1) - middle(drawn[first][..., 0], axis=-1)

        found = estimate(cells, gap, smooth=middle is np.mean)
        return [Evidence(f"{word}{score}, {second} minus {first}", found, **where)]

    return evidence


def pool_runs(
    series: Sequence[str],
    scores: Sequence[str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    **where: float,
) -> Finding:
    """A statistic of the scores [..., run, score] of all runs of some series together."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {name: results.group_scores(name, None, *scores)[None] for name in series}
        found = estimate(cells, lambda c: statistic(np.concatenate(list(c.values()), -2)))
        return [Evidence(what, found, **where)]

    return evidence


def combine(*findings: Finding) -> Finding:
    """The evidence of several findings, all of which a claim needs."""
    return lambda results: [each for finding in findings for each in finding(results)]


def compare_at_each(first: str, second: str, key: str, score: str, **where: float) -> Finding:
    """A score of one series minus that of another, at each value of a setting that both have."""

    def evidence(results: Results) -> list[Evidence]:
        cells = group_series(results, (first, second), key, score)
        made = []
        for at in dict.fromkeys(value for _, value in cells):
            found = estimate(cells, lambda c, at=at: mean_difference(c, (first, at), (second, at)))
            made.append(Evidence(f"{score}, {second} minus {first}, {key} {at:g}", found, **where))
        return made or [Evidence(f"{score}, {second} minus {first}", NO_ESTIMATE, **where)]

    return evidence


def compare_on_average(first: str, second: str, key: str, score: str, **where: float) -> Finding:
    """A score of one series minus that of another, on average over the values of a setting that both have."""

    def evidence(results: Results) -> list[Evidence]:
        cells = group_series(results, (first, second), key, score)
        found = (
            estimate(cells, lambda c: (mean_curve(c, second) - mean_curve(c, first))[..., 0].mean(-1))
            if cells
            else NO_ESTIMATE
        )
        return [Evidence(f"{score}, {second} minus {first}, mean over {key}", found, **where)]

    return evidence


def compare_scores(series: str, key: str, first: str, second: str, **where: float) -> Finding:
    """One score of a run minus another one of the same run, at each value of a setting."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores(series, key, first, second)
        made = []
        for at in cells:
            found = estimate(cells, lambda c, at=at: (c[at][..., 1] - c[at][..., 0]).mean(-1))
            made.append(Evidence(f"{second} minus {first}, {series}, {key} {at:g}", found, **where))
        return made

    return evidence


def compare_pairs(
    first: str,
    second: str,
    keys: Sequence[str],
    scores: tuple[str, str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    **where: float,
) -> Finding:
    """A statistic of differences [..., pair] between runs of two series that have the same settings.

    `scores` are one of each series; of a series that refines the other, the pairs are runs and their stages.
    """

    def evidence(results: Results) -> list[Evidence]:
        runs = [
            {_at(m, keys): m for m in results.select_members(name, own)}
            for name, own in zip((first, second), scores, strict=True)
        ]
        pairs = [(runs[0][at].scores[scores[0]], runs[1][at].scores[scores[1]]) for at in runs[0] if at in runs[1]]
        cells = {None: np.array([[b.value - a.value] for a, b in pairs])}
        found = estimate(cells, lambda c: statistic(c[None][..., 0])) if pairs else NO_ESTIMATE
        return [Evidence(what, found, **where)]

    return evidence


def _at(member: Member, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(member.settings.get(key) for key in keys)
