"""Evidence that several experiments ask for: trade-offs, correlations, differences, and the lack of any.

Each function returns a finding, which is a function from results to evidence; a claim holds one. `bounds` are `low` and
`high`, the range that the claim states for the estimate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unbraid.experiments.claims import Evidence, WideEvidence
from unbraid.experiments.results import Results
from unbraid.experiments.statistics import (
    Cells,
    Estimate,
    cell_means,
    estimate,
    estimate_by_exchange,
    estimate_share,
    find_fisher_interval,
    gap_at_equal_x,
    mean_difference,
    pearson,
)

Finding = Callable[[Results], list[Evidence]]
Claims = Mapping[str, Finding]
"""Statements of a paper, and what finds evidence for or against each."""

NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan)


def find_one(
    what: str | Callable[[Cells], str],
    read_cells: Callable[[Results], Cells],
    statistic: Callable[[Cells], np.ndarray],
    smooth: bool = True,
    /,
    **bounds: float,
) -> Finding:
    """Return a finding with one estimate, which is missing if `read_cells` returns nothing.

    `what` names it, perhaps by its cells. A median is not `smooth` (see `estimate`).
    """

    def evidence(results: Results) -> list[Evidence]:
        cells = read_cells(results)
        name = what if isinstance(what, str) else what(cells)
        return [Evidence(name, estimate(cells, statistic, smooth=smooth) if cells else NO_ESTIMATE, **bounds)]

    return evidence


def combine(*findings: Finding) -> Finding:
    """Return a finding with the evidence of several, all of which a claim needs."""
    return lambda results: [each for finding in findings for each in finding(results)]


def group_series(
    results: Results, series: Sequence[str], key: str | None, *scores: str, common: bool = True
) -> dict[Any, np.ndarray]:
    """Return cells by (series, value of a setting); `common` leaves out values that one of the series lacks."""
    cells = {(name, at): rows for name in series for at, rows in results.group_scores(name, key, *scores).items()}
    return {place: rows for place, rows in cells.items() if not common or all((n, place[1]) in cells for n in series)}


def mean_curve(cells: Cells, series: str) -> np.ndarray:
    """Return means [..., setting, score] of the cells of one series, whose keys are (series, setting)."""
    return cell_means({key: rows for key, rows in cells.items() if key[0] == series})


def correlate_means(cells: Cells, series: str) -> np.ndarray:
    """Return Pearson's correlation over settings of the means of two scores."""
    return pearson(mean_curve(cells, series)[..., 0], mean_curve(cells, series)[..., 1])


def compare_trade_offs(first: str, second: str, key: str, across: str, up: str) -> Finding:
    """Find how much higher `up` of the second series is at equal `across`, on average over the range of both."""
    return find_one(
        f"{up} at equal {across}, {second} minus {first}",
        lambda results: group_series(results, (first, second), key, across, up, common=False),
        lambda c: gap_at_equal_x(mean_curve(c, first), mean_curve(c, second)),
        low=0.0,
    )


def compare_with_largest(series: str, key: str, mode: int | float, score: str) -> Finding:
    """Find whether a score is lower at the largest value of a setting than at `mode`."""
    return find_one(
        lambda c: f"{score} of {series}, {key} {max(c)} minus {key} {mode:g}",
        lambda results: results.group_scores(series, key, score),
        lambda c: mean_difference(c, mode, max(c)) if mode in c else np.full(1, np.nan),
        high=0.0,
    )


def compare_settings(
    series: str, key: str, start: int | float, end: int | float, score: str, **bounds: float
) -> Finding:
    """Find the change of a score from one value of a setting to another."""

    def read_cells(results: Results) -> Cells:
        cells = results.group_scores(series, key, score)
        return cells if {start, end} <= cells.keys() else {}

    what = f"{score}, {key} {end:g} minus {key} {start:g}"
    return find_one(what, read_cells, lambda c: mean_difference(c, start, end), **bounds)


def correlate_scores(series: str, key: str, first: str, second: str, **bounds: float) -> Finding:
    """Find the correlation of two scores of a series over a setting."""
    found = find_one(
        f"correlation of {first} and {second}, {series}",
        lambda results: group_series(results, [series], key, first, second),
        lambda c: correlate_means(c, series),
        **bounds,
    )
    return lambda results: [replace(each, estimate=each.estimate.within(-1.0, 1.0)) for each in found(results)]


def compare_correlations(weak: str, strong: str, key: str, first: str, second: str) -> Finding:
    """Find whether two scores have a lower correlation in the series `strong` than in `weak`."""
    found = find_one(
        f"correlation of {first} and {second}, {strong} minus {weak}",
        lambda results: group_series(results, (weak, strong), key, first, second, common=False),
        lambda c: correlate_means(c, strong) - correlate_means(c, weak),
        high=0.0,
    )
    return lambda results: [replace(each, estimate=each.estimate.within(-2.0, 2.0)) for each in found(results)]


def bound_difference(
    first: str, second: str, key: str, *, absolute: dict[str, float], relative: dict[str, float]
) -> Finding:
    """Find whether two series have the same scores, on average over a setting.

    The same means within `absolute`, or within `relative` times the mean of the first series, both by score.
    """
    scores = [*absolute, *relative]

    def evidence(results: Results) -> list[Evidence]:
        cells, pieces = group_series(results, (first, second), key, *scores), []
        for k, score in enumerate(scores):
            found = estimate(cells, lambda c, k=k: (mean_curve(c, second) - mean_curve(c, first))[..., k].mean(-1))
            size = abs(float(mean_curve(cells, first)[:, k].mean()))
            bound = absolute[score] if score in absolute else relative[score] * size
            pieces.append(Evidence(f"{score}, {second} minus {first}, mean over {key}", found, -bound, bound))
        return pieces

    return evidence


def pool_series(*series: str, scores: Sequence[str]) -> Callable[[Results], Cells]:
    """Return a function that reads one cell per series, with all of its runs."""
    return lambda results: {name: results.group_scores(name, None, *scores)[None] for name in series}


def compare_means(first: str, second: str, score: str, **bounds: float) -> Finding:
    """Find the mean over seeds of the second series minus that of the first."""
    cells = pool_series(first, second, scores=[score])
    return find_one(f"{score}, {second} minus {first}", cells, lambda c: mean_difference(c, first, second), **bounds)


def compare_medians(first: str, second: str, score: str, **bounds: float) -> Finding:
    """Find the median over seeds of the second series minus that of the first."""

    def gap(cells: Cells) -> np.ndarray:
        return np.median(cells[second][..., 0], -1) - np.median(cells[first][..., 0], -1)

    cells = pool_series(first, second, scores=[score])
    return find_one(f"median {score}, {second} minus {first}", cells, gap, False, **bounds)


def pool_runs(
    series: Sequence[str],
    scores: Sequence[str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    **bounds: float,
) -> Finding:
    """Find a statistic of the scores [..., run, score] of all runs of several series."""
    cells = pool_series(*series, scores=scores)
    return find_one(what, cells, lambda c: statistic(np.concatenate(list(c.values()), -2)), **bounds)


def correlate_runs(series: Sequence[str], first: str, second: str, what: str, **bounds: float) -> Finding:
    """Find the correlation of two scores over all runs of several series.

    A bootstrap over few runs is a little too sure of it, so the interval contains Fisher's.
    """
    found = pool_runs(series, [first, second], lambda s: pearson(s[..., 0], s[..., 1]), what, **bounds)

    def evidence(results: Results) -> list[Evidence]:
        count = sum(len(results.select_members(name, first, second)) for name in series)
        return [
            replace(each, estimate=each.estimate.cover(*find_fisher_interval(each.estimate.value, count)))
            for each in found(results)
        ]

    return evidence


def find_mean(series: str, score: str, what: str = "", **bounds: float) -> Finding:
    """Find the mean of a score over the runs of a series."""
    found = pool_runs([series], [score], lambda s: s[..., 0].mean(-1), what or f"{score}, {series}", **bounds)
    return lambda results: [
        replace(each, estimate=each.estimate.within(*results.find_bounds(score))) for each in found(results)
    ]


def find_extreme(
    series: Sequence[str],
    scores: Sequence[str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    **bounds: float,
) -> Finding:
    """Find the extreme of scores [run, score] over all runs, for statements about every model that was computed.

    It is a fact about these models, without an interval.
    """
    cells = pool_series(*series, scores=scores)

    def evidence(results: Results) -> list[Evidence]:
        value = float(statistic(np.concatenate(list(cells(results).values()))))
        return [Evidence(what, Estimate(value, value, value), **bounds)]

    return evidence


def find_largest(series: Sequence[str], score: str, what: str = "", **bounds: float) -> Finding:
    """Find the largest value of a score over all runs of several series."""
    return find_extreme(series, [score], lambda s: s[:, 0].max(), what or f"largest {score}", **bounds)


def exists(series: str, score: str, condition: Callable[[np.ndarray], np.ndarray], what: str) -> Finding:
    """Find whether some run of a series fulfils a condition on its score: one is enough, and none proves nothing."""

    def evidence(results: Results) -> list[Evidence]:
        found = condition(results.group_scores(series, None, score)[None][:, 0])
        kind = Evidence if found.any() else WideEvidence  # a share of 0 never ends above 0
        return [kind(f"share of runs of {series} with {what}", estimate_share(found), low=0.0)]

    return evidence


def compare_extremes(
    first: str,
    second: str,
    key: str | None,
    scores: Sequence[str],
    choose: Callable[[np.ndarray], np.ndarray],
    what: str,
    **bounds: float,
) -> Finding:
    """Find what `choose` takes from all runs [..., run, score] of the second series, minus that of the first."""

    def gap(cells: Cells) -> np.ndarray:
        one, other = (
            np.concatenate([rows for (n, _), rows in cells.items() if n == name], -2) for name in (first, second)
        )
        return choose(other) - choose(one)

    def evidence(results: Results) -> list[Evidence]:
        cells = group_series(results, (first, second), key, *scores)
        found = estimate_by_exchange(cells, gap, first, second) if cells else NO_ESTIMATE
        return [WideEvidence(f"{what}, {second} minus {first}", found, **bounds)]

    return evidence


def find_at_each(
    what: str, series: Sequence[str], key: str, scores: Sequence[str], statistic: Callable[..., Any], /, **bounds: float
) -> Finding:
    """Find a statistic at each value of a setting that all series have; it takes the scores of each series there."""

    def evidence(results: Results) -> list[Evidence]:
        cells, pieces = group_series(results, series, key, *scores), []
        for at in dict.fromkeys(value for _, value in cells):
            found = estimate(cells, lambda c, at=at: statistic(*(c[name, at] for name in series)))
            pieces.append(Evidence(f"{what}, {key} {at:g}", found, **bounds))
        return pieces or [Evidence(what, NO_ESTIMATE, **bounds)]

    return evidence


def compare_at_each(first: str, second: str, key: str, score: str, **bounds: float) -> Finding:
    """Find a score of the second series minus that of the first, at each value of a setting that both have."""
    what = f"{score}, {second} minus {first}"
    return find_at_each(what, (first, second), key, [score], lambda a, b: (b.mean(-2) - a.mean(-2))[..., 0], **bounds)


def compare_on_average(first: str, second: str, key: str, score: str, **bounds: float) -> Finding:
    """Find a score of the second series minus that of the first, averaged over the values of a setting of both."""
    return find_one(
        f"{score}, {second} minus {first}, mean over {key}",
        lambda results: group_series(results, (first, second), key, score),
        lambda c: (mean_curve(c, second) - mean_curve(c, first))[..., 0].mean(-1),
        **bounds,
    )


def compare_scores(series: str, key: str, first: str, second: str, **bounds: float) -> Finding:
    """Find one score of a run minus another one of the same run, at each value of a setting."""
    what = f"{second} minus {first}, {series}"
    return find_at_each(what, [series], key, [first, second], lambda s: (s[..., 1] - s[..., 0]).mean(-1), **bounds)


def compare_pairs(
    first: str,
    second: str,
    keys: Sequence[str],
    scores: tuple[str, str],
    statistic: Callable[[np.ndarray], np.ndarray],
    what: str,
    refines: bool = False,
    **bounds: float,
) -> Finding:
    """Find a statistic of the differences [..., pair] between runs of two series that agree in the settings `keys`.

    `scores` holds one score of each series. If the second series `refines` the first, a pair is a run and its stage.
    """

    def read_values(results: Results, name: str, score: str) -> dict[tuple[Any, ...], float]:
        members = results.select_members(name, score)
        return {tuple(m.settings.get(key) for key in keys): m.scores[score].value for m in members}

    def read_cells(results: Results) -> Cells:
        before = results.whole if refines and results.whole else results
        first_values, second_values = read_values(before, first, scores[0]), read_values(results, second, scores[1])
        gaps = [[second_values[at] - value] for at, value in first_values.items() if at in second_values]
        return {None: np.array(gaps)} if gaps else {}

    return find_one(what, read_cells, lambda c: statistic(c[None][..., 0]), **bounds)
