"""Evidence that several experiments ask for: trade-offs, correlations, differences, and the lack of any.

Each function takes what it is about and returns a function from results to evidence, as a claim has it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.experiments.base import Evidence, Results
from unbraid.experiments.statistics import Cells, Estimate, difference, estimate, gap_at_equal, means, pearson
from unbraid.report.tables import Member

Finding = Callable[[Results], list[Evidence]]
NONE = Estimate(math.nan, math.nan, math.nan)


def cells_of(results: Results, series: Sequence[str], key: str | None, *scores: str) -> dict[Any, np.ndarray]:
    """Cells of several series by (series, setting), of the settings that all of them have."""
    found = {name: results.cells(name, key, *scores) for name in series}
    common = [at for at in found[series[0]] if all(at in cells for cells in found.values())]
    return {(name, at): found[name][at] for name in series for at in common}


def curve(cells: Cells, series: str) -> np.ndarray:
    """Means [..., setting, score] of the cells of one series, whose keys are (series, setting)."""
    return means({key: rows for key, rows in cells.items() if key[0] == series})


def better_trade_off(first: str, second: str, key: str, across: str, up: str) -> Finding:
    """The second series is higher at equal `across`, on average over what both reach."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {**cells_of(results, (first,), key, across, up), **cells_of(results, (second,), key, across, up)}
        found = estimate(cells, lambda c: gap_at_equal(curve(c, first), curve(c, second)))
        return [Evidence(f"{up} at equal {across}, {second} minus {first}", found, low=0.0)]

    return evidence


def falls_after(series: str, key: str, mode: int | float, score: str) -> Finding:
    """A score is lower at the largest value of a setting than at its mode."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.cells(series, key, score)
        most = max(cells)
        found = estimate(cells, lambda c: difference(c, mode, most)) if mode in cells else NONE
        return [Evidence(f"{score} of {series}, {key} {most} minus {key} {mode:g}", found, high=0.0)]

    return evidence


def changes(series: str, key: str, start: int | float, end: int | float, score: str, **where: float) -> Finding:
    """How a score changes from one value of a setting to another."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.cells(series, key, score)
        found = estimate(cells, lambda c: difference(c, start, end)) if {start, end} <= cells.keys() else NONE
        return [Evidence(f"{score}, {key} {end:g} minus {key} {start:g}", found, **where)]

    return evidence


def correlation(series: str) -> Callable[[Cells], np.ndarray]:
    """Pearson's correlation of the means of two scores over settings."""
    return lambda cells: pearson(curve(cells, series)[..., 0], curve(cells, series)[..., 1])


def correlated(series: str, key: str, first: str, second: str, **where: float) -> Finding:
    """Two scores of a series are correlated over a setting."""

    def evidence(results: Results) -> list[Evidence]:
        found = estimate(cells_of(results, (series,), key, first, second), correlation(series))
        return [Evidence(f"correlation of {first} and {second}, {series}", found, **where)]

    return evidence


def more_negative(weak: str, strong: str, key: str, first: str, second: str) -> Finding:
    """Two scores have a lower correlation in one series than in another."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {**cells_of(results, (weak,), key, first, second), **cells_of(results, (strong,), key, first, second)}
        found = estimate(cells, lambda c: correlation(strong)(c) - correlation(weak)(c))
        return [Evidence(f"correlation of {first} and {second}, {strong} minus {weak}", found, high=0.0)]

    return evidence


def no_difference(
    first: str, second: str, key: str, *, absolute: dict[str, float], relative: dict[str, float]
) -> Finding:
    """Two series have the same scores, on average over a setting, within an absolute or a relative distance."""
    scores = [*absolute, *relative]

    def evidence(results: Results) -> list[Evidence]:
        cells, made = cells_of(results, (first, second), key, *scores), []
        for k, score in enumerate(scores):
            found = estimate(cells, lambda c, k=k: (curve(c, second) - curve(c, first))[..., k].mean(-1))
            size = abs(float(curve(cells, first)[:, k].mean()))
            room = absolute[score] if score in absolute else relative[score] * size
            made.append(Evidence(f"{score}, {second} minus {first}, mean over {key}", found, -room, room))
        return made

    return evidence


def differs(first: str, second: str, score: str, **where: float) -> Finding:
    """Mean over seeds of one series minus that of another."""
    return _apart(first, second, score, np.mean, "", where)


def differs_in_median(first: str, second: str, score: str, **where: float) -> Finding:
    """Median over seeds of one series minus that of another."""
    return _apart(first, second, score, np.median, "median ", where)


def _apart(
    first: str, second: str, score: str, middle: Callable[..., Any], word: str, where: Mapping[str, float]
) -> Finding:
    def evidence(results: Results) -> list[Evidence]:
        cells = {name: results.cells(name, None, score)[None] for name in (first, second)}

        def gap(drawn: Cells) -> np.ndarray:
            return middle(drawn[second][..., 0], axis=-1) - middle(drawn[first][..., 0], axis=-1)

        found = estimate(cells, gap, smooth=middle is np.mean)
        return [Evidence(f"{word}{score}, {second} minus {first}", found, **where)]

    return evidence


def over_runs(
    series: Sequence[str],
    scores: Sequence[str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    **where: float,
) -> Finding:
    """A statistic of the scores [..., run, score] of all runs of some series together."""

    def evidence(results: Results) -> list[Evidence]:
        cells = {name: results.cells(name, None, *scores)[None] for name in series}
        found = estimate(cells, lambda c: statistic(np.concatenate(list(c.values()), -2)))
        return [Evidence(what, found, **where)]

    return evidence


def together(*findings: Finding) -> Finding:
    """The evidence of several findings, all of which a claim needs."""
    return lambda results: [each for finding in findings for each in finding(results)]


def at_each(first: str, second: str, key: str, score: str, **where: float) -> Finding:
    """A score of one series minus that of another, at each value of a setting that both have."""

    def evidence(results: Results) -> list[Evidence]:
        cells = cells_of(results, (first, second), key, score)
        made = []
        for at in dict.fromkeys(value for _, value in cells):
            found = estimate(cells, lambda c, at=at: difference(c, (first, at), (second, at)))
            made.append(Evidence(f"{score}, {second} minus {first}, {key} {at:g}", found, **where))
        return made or [Evidence(f"{score}, {second} minus {first}", NONE, **where)]

    return evidence


def on_average(first: str, second: str, key: str, score: str, **where: float) -> Finding:
    """A score of one series minus that of another, on average over the values of a setting that both have."""

    def evidence(results: Results) -> list[Evidence]:
        cells = cells_of(results, (first, second), key, score)
        found = estimate(cells, lambda c: (curve(c, second) - curve(c, first))[..., 0].mean(-1)) if cells else NONE
        return [Evidence(f"{score}, {second} minus {first}, mean over {key}", found, **where)]

    return evidence


def within(series: str, key: str, first: str, second: str, **where: float) -> Finding:
    """One score of a run minus another one of the same run, at each value of a setting."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.cells(series, key, first, second)
        made = []
        for at in cells:
            found = estimate(cells, lambda c, at=at: (c[at][..., 1] - c[at][..., 0]).mean(-1))
            made.append(Evidence(f"{second} minus {first}, {series}, {key} {at:g}", found, **where))
        return made

    return evidence


def of_pairs(
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
            {_at(m, keys): m for m in results.with_scores(name, own)}
            for name, own in zip((first, second), scores, strict=True)
        ]
        pairs = [(runs[0][at].scores[scores[0]], runs[1][at].scores[scores[1]]) for at in runs[0] if at in runs[1]]
        cells = {None: np.array([[b.value - a.value] for a, b in pairs])}
        found = estimate(cells, lambda c: statistic(c[None][..., 0])) if pairs else NONE
        return [Evidence(what, found, **where)]

    return evidence


def _at(member: Member, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(member.settings.get(key) for key in keys)
