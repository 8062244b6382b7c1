"""One verdict from the evidence for a claim, and which series and how many seeds it rests on."""

import math
from collections.abc import Sequence
from dataclasses import replace

from unbraid.experiments.base import MIN_CHANCE, Claim, Evidence, MissingResultsError, Results, VerdictWord
from unbraid.experiments.statistics import widen_for

MIN_SEEDS = 3
"""Seeds that a verdict needs."""


def find_evidence(claim: Claim, results: Results) -> tuple[Evidence, ...]:
    """Return the evidence for a claim, with intervals that are wider if this is not the first look at it."""
    looks = results.looks.get(claim.text, 1)
    found = claim.evidence(results)
    return tuple(replace(each, estimate=widen_for(looks, each.estimate, max_freedom=math.inf)) for each in found)


def combine_verdicts(evidence: Sequence[Evidence]) -> VerdictWord:
    """Return "holds" if every piece of evidence holds, and "does not hold" if one does not.

    One of several intervals lies outside by chance more often than one alone; to refute a claim, each of k intervals
    therefore has the level 1 - 0.1 / k.
    """
    wide = widen_to_refute(evidence)
    if "does not hold" in {each.verdict for each in wide}:
        return "does not hold"
    return "holds" if {each.verdict for each in evidence} == {"holds"} else "inconclusive"


def widen_to_refute(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Return evidence with the intervals that a refutation needs."""
    return [replace(each, estimate=widen_for(len(evidence), each.estimate)) for each in evidence]


def find_refutations(evidence: Sequence[Evidence]) -> set[tuple[int, int]]:
    """Return the number of each piece of evidence that refutes a claim, and its side: 1 above its range, -1 below."""
    return {(k, each.side) for k, each in enumerate(widen_to_refute(evidence)) if each.verdict == "does not hold"}


def explain_smallness(evidence: Sequence[Evidence]) -> str:
    """Return that a difference is too small, as the end of a sentence; nothing if a claim fails for another reason."""
    wide = widen_to_refute(evidence)
    least = min(wide, key=lambda each: each.best_chance)
    chance = least.estimate.chance
    if chance is None or least.best_chance >= MIN_CHANCE or any(each.lies_outside for each in wide):
        return ""
    share = chance.value if least.low == 0 else 1 - chance.value
    which = f" of {least.what}" if len(evidence) > 1 else ""
    return (
        f". With one seed of each setting, {share:.0%} of all choices{which} have this sign, "
        f"{least.best_chance:.0%} at most; two of three should"
    )


def find_series(claim: Claim, results: Results) -> list[str]:
    """Return the series that a claim reads: without the runs of one of them its evidence is missing or another."""

    def find_evidence(without: str = "") -> object:
        left = replace(results, members=tuple(m for m in results.members if m.settings["recipe"] != without))
        try:
            return [(each.what, each.estimate) for each in claim.evidence(left)]
        except MissingResultsError:
            return None

    evidence = find_evidence()
    return [name for name in results.series if find_evidence(name) != evidence]


def count_seeds(claim: Claim, results: Results) -> int:
    """Return the seeds of the setting that has the fewest, among those of the series that a claim reads."""
    if len({setting.finished for setting in results.settings}) == 1:
        return results.seeds
    names = find_series(claim, results)
    members = tuple(m for m in results.members if m.settings["recipe"] in names)
    return replace(results, members=members or results.members).seeds
