"""Verdicts on claims, from the evidence that results give.

    holds           the 90% interval of every estimate lies in the range that the claim states
    does not hold   one interval lies completely outside its range, or a difference is too small: of all choices of one
                    seed per setting, fewer than two of three have the claimed sign (the 90% interval of this share
                    ends below 2/3). With several estimates, intervals are wider for this purpose
    inconclusive    anything else, and always: scale smoke, fewer than 3 seeds, or estimates that had not settled

An estimate has settled if its verdict would be the same after as many steps again, at the pace of the last fifth, or if
runs of twice the steps confirm it; if these give the opposite verdict, the claim is open (`settling.py`).
Whoever adds seeds until a claim is settled will settle false ones, too: at the k-th look, intervals have the level
1 - 0.1 / k.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from unbraid.experiments.claims import Claim, Evidence, Verdict
from unbraid.experiments.combining import (
    MIN_SEEDS,
    combine_verdicts,
    count_seeds,
    drop_unscored,
    explain_smallness,
    find_evidence,
)
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.experiments.settling import judge_settling
from unbraid.experiments.statistics import foresee
from unbraid.report.tables import select_finished

MAX_SEEDS = 1000
"""The most seeds that are suggested."""

LEAST_TO_CONFIRM = 5
"""The fewest seeds of twice the steps that are suggested."""

MAX_UNCHECKED_SHARE = 0.1
"""Largest share of runs without a snapshot with which a claim still gets a verdict."""


def judge(claim: Claim, results: Results) -> Verdict:
    """Return the verdict on a claim, with its reason."""
    looks = results.looks.get(claim.text, 1)
    try:
        evidence = find_evidence(claim, results)
    except MissingResultsError as error:
        return Verdict(claim.text, "inconclusive", f"{error}.", looks=looks)
    found = "; ".join(f"{e.what}: {e.estimate}, claimed {e.wanted}" for e in evidence)
    weak = _explain_weakness(results, drop_unscored(claim, results).seeds, claim.trained)
    if weak:
        return Verdict(claim.text, "inconclusive", f"{found}.{weak}", evidence, looks)
    verdict = combine_verdicts(evidence)
    small = explain_smallness(evidence) if verdict == "does not hold" else ""
    found += small
    if verdict == "inconclusive":
        found += _suggest_seeds(evidence, count_seeds(claim, results), looks)
    if claim.trained and results.earlier is not None:
        verdict, movement = judge_settling(claim, results, evidence, verdict, bool(small))
        found = f"{found}. {movement}"
    return Verdict(claim.text, verdict, f"{found}.", evidence, looks)


def _explain_weakness(results: Results, seeds: int, trained: bool) -> str:
    """Return the reason why these results allow no verdict, or an empty text."""
    if results.scale == "smoke":
        return " A smoke run only shows that the program works."
    if seeds < MIN_SEEDS:
        return f" A verdict needs {MIN_SEEDS} seeds of each setting, and one has {seeds}."
    runs = len(select_finished(results.members))
    if trained and len(results.unchecked) > MAX_UNCHECKED_SHARE * runs:
        return f" {len(results.unchecked)} of {runs} runs were shorter than the paper's and have no snapshot of 4/5."
    return ""


def count_needed_seeds(evidence: Sequence[Evidence], seeds: int, looks: int = 1) -> float:
    """Return about how many seeds would settle an open claim at the effects seen so far; infinitely many if none would.

    That is the fewest with which the next look would come to a verdict, with intervals a tenth wider than expected.
    """

    def foresee_all(more: int) -> list[Evidence]:
        return [replace(each, estimate=foresee(each.estimate, seeds, more, looks).stretch(1.1)) for each in evidence]

    def find_first(condition: Callable[[Sequence[Evidence]], bool]) -> float:
        """Return the fewest seeds with a condition that all larger numbers of seeds fulfil, too."""
        counts = range(seeds + 1, max(MAX_SEEDS, seeds + 1) + 1)
        place = bisect_left(counts, True, key=lambda more: condition(foresee_all(more)))
        return counts[place] if place < len(counts) else math.inf

    refuting = find_first(lambda later: combine_verdicts(later) == "does not hold")
    holding = find_first(lambda later: all(each.lies_inside for each in later))
    if holding < refuting and combine_verdicts(foresee_all(int(holding))) == "holds":
        return holding
    return refuting  # of differences that are above 0, but too small


def count_confirming_seeds(evidence: Sequence[Evidence], seeds: int, looks: int = 1) -> int:
    """Return about how many of these seeds would give the same verdict at the same look, at the effects seen so far.

    They are 5 or more, as far as there are as many; all of them if an interval does not narrow as that of a mean does.
    """

    def foresee_all(fewer: int) -> list[Evidence]:
        later = (foresee(each.estimate, seeds, fewer, looks, looks).stretch(1.1) for each in evidence)
        return [replace(each, estimate=estimate) for each, estimate in zip(evidence, later, strict=True)]

    if not all(each.narrows for each in evidence):
        return seeds
    verdict, counts = combine_verdicts(evidence), range(LEAST_TO_CONFIRM, seeds)
    return next((fewer for fewer in counts if combine_verdicts(foresee_all(fewer)) == verdict), seeds)


def _suggest_seeds(evidence: Sequence[Evidence], seeds: int, looks: int) -> str:
    """Return how many seeds would settle a claim, as the end of a sentence; nothing if an estimate is missing."""
    if not evidence or not all(math.isfinite(end) for each in evidence for end in each.estimate[:3]):
        return ""
    if not all(each.narrows for each in evidence):
        return ". More seeds do not narrow it as they do a mean, so no number of them is foreseen"
    needed = count_needed_seeds(evidence, seeds, looks)
    number = f"about {needed}" if math.isfinite(needed) else f"more than {MAX_SEEDS:,}"
    return f". At the effect seen so far, {number} seeds would settle it (--seeds)"
