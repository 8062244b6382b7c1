r"""Differences of scores with 95% intervals: of two models on the same rows, or of two settings over seeds.

Two models that are scored on the same rows share much of their spread, so their difference is known better than either
score. Both are scored on the same pairs of halves of the rows, whose differences give the spread over draws of as many
rows (`intervals`). Scores that split their rows into training and test rows split each
half anew, which makes their interval a little wider than necessary. `corrected` scores draw the information of both
models with the same weights of rows instead, for the difference over all rows. The ELBO is a mean over rows: its
interval is that of the mean difference of rows, and nothing is decoded again.

Runs of two settings share no rows of chance, only seeds: the interval of their difference is that of welch1947.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from unbraid.errors import UsageError
from unbraid.metrics.base import Evaluation, evaluate, expand
from unbraid.metrics.information.corrected import PROTOCOL, Family, draw_differences
from unbraid.metrics.intervals import (
    ALL_ROWS,
    EXACT,
    draw_halves,
    halves_interval,
    mean_interval,
    resampling_interval,
    spread_at,
)
from unbraid.metrics.score import RESAMPLES, metric
from unbraid.metrics.unsupervised.elbo import compute_row_bounds
from unbraid.progress import track


@dataclass(frozen=True)
class Comparison:
    """The difference second - first of a score, its 95% interval, and what the interval is over.

    `settings` are those that both sides share in a sweep where others than the compared ones vary.
    """

    score: str
    first: float
    second: float
    difference: float
    interval: tuple[float, float] | None
    over: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def as_record(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        ends = None if self.interval is None else list(self.interval)
        return {key: getattr(self, key) for key in self.__dataclass_fields__} | {"interval": ends}


def compare_evaluations(
    first: Evaluation, second: Evaluation, names: Sequence[str], *, resamples: int = 20, **settings: Any
) -> list[Comparison]:
    """Return the difference of each score of two models on the same rows, with a paired interval over rows."""
    if len(first) != len(second) or not torch.equal(first.rows.cpu(), second.rows.cpu()):
        raise UsageError("Two runs are compared on the same rows, but these are evaluated on different ones.")
    chosen = expand(names)
    known = {key for name in chosen for key in metric[name].settings}
    quick = {**settings, RESAMPLES: 0} if RESAMPLES in known else settings
    whole = [_score(each, chosen, quick) for each in (first, second)]
    shared = [name for name in whole[0] if name in whole[1]]
    rng, halves = np.random.default_rng(first.seed), []
    exact = {name for name in shared if metric["/".join(name.split("/")[:2])].facts.deterministic}
    drawn = _draw_corrected(first, second, chosen, settings) if first.seed == second.seed else {}
    bounds = _compare_bounds(first, second, chosen, settings) if first.seed == second.seed else {}
    again = [
        name
        for name in chosen
        if not (metric[name].facts.deterministic or name in bounds or (drawn and is_corrected(name)))
    ]
    for (half,) in track("comparison", draw_halves([len(first)], resamples if again else 0, rng)):
        rows = torch.as_tensor(half, device=first.rows.device)
        scores = [_score(each.take(rows), again, quick) for each in (first, second)]
        halves.append({name: scores[1][name] - scores[0][name] for name in scores[0] if name in scores[1]})
    found = []
    for name in shared:
        difference = whole[1][name] - whole[0][name]
        pairs = [pair for pair in zip(halves[::2], halves[1::2], strict=True) if all(name in half for half in pair)]
        interval, over = (
            halves_interval(difference, [half[name] for pair in pairs for half in pair]),
            spread_at(len(first)),
        )
        if name in exact:
            interval, over = (difference, difference), EXACT
        if name in drawn:
            interval, over = resampling_interval(difference, drawn[name]), ALL_ROWS
        if name in bounds:
            interval, over = bounds[name], ALL_ROWS
        found.append(Comparison(name, whole[0][name], whole[1][name], difference, interval, over))
    return found


def is_corrected(name: str) -> bool:
    return name.endswith(f"/{PROTOCOL}")


def _draw_corrected(
    first: Evaluation, second: Evaluation, names: Sequence[str], settings: dict[str, Any]
) -> dict[str, list[float]]:
    """Return draws of the differences of `corrected` scores, by the names of scores."""
    drawn: dict[str, list[float]] = {}
    for name in filter(is_corrected, names):
        family, known = cast(Family, name.partition("/")[0]), metric[name].settings
        resolved = metric[name].resolve({key: value for key, value in settings.items() if key in known})
        drawn |= draw_differences(first, second, family, resolved)
    return drawn


def _compare_bounds(
    first: Evaluation, second: Evaluation, names: Sequence[str], settings: dict[str, Any]
) -> dict[str, tuple[float, float] | None]:
    """Return the interval of the mean difference of rows, of each ELBO among the names."""
    found = {}
    for name in names:
        family, _, protocol = name.partition("/")
        if family == "elbo":
            resolved = metric[name].resolve({key: settings[key] for key in settings if key in metric[name].settings})
            one, other = (compute_row_bounds(each, protocol, **resolved) for each in (first, second))
            found[name] = mean_interval((other - one).numpy())
    return found


def _score(evaluation: Evaluation, names: Sequence[str], settings: dict[str, Any]) -> dict[str, float]:
    return {score.name: score.value for score in evaluate(evaluation, names, **settings)}


def compare_seeds(
    score: str, first: Sequence[float], second: Sequence[float], settings: Mapping[str, Any] | None = None
) -> Comparison:
    """Return the difference of the means of two settings over their seeds, with the interval of welch1947."""
    from scipy.special import stdtrit

    if not first or not second:
        raise UsageError(f"Both settings need a run with the score {score}; score them first.")
    before, after = (float(np.mean(values)) for values in (first, second))
    over, difference, held = f"{len(first)} and {len(second)} seeds", after - before, dict(settings or {})
    if min(len(first), len(second)) < 2:
        return Comparison(score, before, after, difference, None, over, held)
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    if sum(parts) == 0:
        return Comparison(score, before, after, difference, (difference, difference), over, held)
    degrees = sum(parts) ** 2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (first, second), strict=True))
    reach = float(stdtrit(degrees, 0.975)) * math.sqrt(sum(parts))
    interval = (difference - reach, difference + reach)
    return Comparison(score, before, after, difference, interval, over, held)
