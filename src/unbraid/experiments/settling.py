"""Whether a claim's estimates had settled: whether its verdict would be the same after as many steps again.

Learning curves flatten, so as many steps again move an estimate at most as far as the latest steps did, at their mean
pace. A snapshot at 4/5 of training gives the pace of the last fifth. Where the learning rate falls to 0, scores move in
the last fifth because the rate falls, and would do so at the end of any schedule. Runs of twice the steps have a whole
schedule of their own and answer the question itself: they confirm a verdict if they give it, too, and the claim is open
if they give the opposite one.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from unbraid.experiments.base import SNAPSHOT_SHARE
from unbraid.experiments.claims import Claim, Evidence, VerdictWord
from unbraid.experiments.combining import (
    MIN_SEEDS,
    Place,
    combine_verdicts,
    count_seeds,
    find_evidence,
    find_read_scores,
    find_refutations,
    find_series,
    identify_setting,
)
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.report.tables import has_score

STEPS_AHEAD = 1 / (1 - SNAPSHOT_SHARE)
"""As many steps again as the whole training, in units of those since the snapshot."""

WITH_TWICE = "With twice the steps"
"""Words in the reason of a verdict that runs of twice the steps were asked for."""

DISAGREEMENT = "runs of both lengths give opposite verdicts"
"""Words in the reason of a claim that is open because of it."""

IN_WORDS = {"holds": "it holds", "does not hold": "it does not hold", "inconclusive": "it is open"}
"""Verdicts in a sentence."""


def judge_settling(
    claim: Claim, results: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str]:
    """Return the verdict, inconclusive if its estimates still move too fast, and how they moved.

    A difference that is `small` has no bound that it could move away from.
    """
    settled, words, warning = _compare_with_snapshots(claim, results, evidence, verdict, small)
    longer, problem = find_longer_evidence(claim, results, evidence)
    if not longer:
        return settled, words + warning + (f". {WITH_TWICE} there are runs, but {problem}" if problem else "")
    later = combine_verdicts(longer)
    if keeps_verdict(longer, evidence, verdict):
        settled, warning = verdict, ""
    elif "inconclusive" not in (verdict, later):
        settled, warning = "inconclusive", f"{warning}; {DISAGREEMENT}"
    found = ", ".join(str(each.estimate) for each in longer)
    return settled, f"{words}{warning}. {WITH_TWICE} {IN_WORDS[later]}: {found}"


def _compare_with_snapshots(
    claim: Claim, results: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str, str]:
    """Return the verdict, inconclusive if the pace of the last fifth would change it, the movement, and a warning."""
    assert results.earlier is not None
    try:
        before = claim.evidence(replace(results.earlier, whole=results))
    except MissingResultsError as error:
        return "inconclusive", f"Before the last fifth of training {error}", ""
    if missing := _list_missing(claim, results, results.earlier):
        return "inconclusive", f"Snapshots of 4/5 of training lack {_describe_missing(missing)}", ""
    drifts = [now.estimate.value - then.estimate.value for now, then in zip(evidence, before, strict=True)]
    moved = [
        replace(each, estimate=each.estimate.move(STEPS_AHEAD * drift))
        for each, drift in zip(evidence, drifts, strict=True)
    ]
    words = f"Since 4/5 of training: {', '.join(f'{drift:+.2g}' for drift in drifts)}"
    if verdict == "inconclusive":
        return verdict, words, ""
    if not keeps_verdict(moved, evidence, verdict):
        return "inconclusive", words, f"; at this pace, as many steps again would change the verdict ({verdict})"
    further = not small and all(_deepens(each, drift) for each, drift in zip(evidence, drifts, strict=True))
    return verdict, words + (", away from the bound" if further else ""), ""


def keeps_verdict(moved: Sequence[Evidence], evidence: Sequence[Evidence], verdict: VerdictWord) -> bool:
    """Return whether evidence that has moved gives the verdict, too.

    An estimate that refutes a claim from the other side of its range would have passed through it.
    """
    if combine_verdicts(moved) != verdict:
        return False
    return verdict != "does not hold" or bool(find_refutations(moved) & find_refutations(evidence))


def _deepens(evidence: Evidence, drift: float) -> bool:
    """Return whether an estimate moves away from every end of its range."""
    value = evidence.estimate.value
    return all(drift * (value - end) > 0 for end in (evidence.low, evidence.high) if math.isfinite(end))


def find_longer_evidence(
    claim: Claim, results: Results, evidence: Sequence[Evidence]
) -> tuple[tuple[Evidence, ...], str]:
    """Return the evidence of runs of twice the steps; if they cannot be compared, none of it and the reason.

    There is no reason if nobody trained the series that the claim reads for so long. `evidence` is that of the whole
    runs. The interval is wider if this is not the first look at the whole or at the longer runs.
    """
    longer = results.longer
    if longer is None or not set(find_series(claim, results)) & set(longer.series):
        return (), ""
    if missing := _list_missing(claim, results, longer):
        return (), f"they lack {_describe_missing(missing)}"
    looks = sum(each.looks.get(claim.text, 1) for each in (results, longer)) - 1
    try:
        if (seeds := count_seeds(claim, longer)) < MIN_SEEDS:
            return (), f"with {seeds} seeds of a setting; {MIN_SEEDS} are needed"
        found = find_evidence(claim, replace(longer, looks={claim.text: looks}))
    except MissingResultsError as error:
        return (), str(error)
    known = all(math.isfinite(end) for each in found for end in each.estimate[:3])
    if not known or len(found) != len(evidence):
        return (), "they do not have all of its estimates"
    return found, ""


def _list_missing(claim: Claim, results: Results, other: Results) -> set[Place]:
    """Return the scores that other results lack at some setting and without which the evidence for a claim changes."""
    return find_read_scores(claim, results, _list_scores(results) - _list_scores(other))


def _list_scores(results: Results) -> set[Place]:
    """Return the scores that some run has, at each setting."""
    return {(identify_setting(m), score) for m in results.members for score in m.scores if has_score(m, score)}


def _describe_missing(missing: set[Place]) -> str:
    place, score = min(missing, key=lambda each: (sorted(each[0]), each[1]))
    at = dict(place)
    series = at.pop("recipe")
    return f"{score} of {series}" + "".join(f", {key} {value}" for key, value in sorted(at.items()))
