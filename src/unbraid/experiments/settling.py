"""Whether a claim's estimates had settled, so that its verdict would be the same after as many steps again."""

import math
from collections.abc import Sequence
from dataclasses import replace

from unbraid.experiments.base import SNAPSHOT_SHARE, Claim, Evidence, MissingResultsError, Results, VerdictWord
from unbraid.experiments.combining import MIN_SEEDS, combine_verdicts, count_seeds, find_evidence

STEPS_AHEAD = 1 / (1 - SNAPSHOT_SHARE)
"""As many steps again as the whole training, in units of those since the snapshot."""


def judge_settling(
    claim: Claim, results: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str]:
    """Return the verdict, inconclusive if its estimates still move too fast, and how they moved.

    The snapshots decide, and, where a verdict fails by them, runs of half the steps.
    """
    assert results.earlier is not None
    earlier = replace(results.earlier, whole=results)
    settled, words = _compare_with_snapshots(claim, earlier, evidence, verdict, small)
    half = _find_half(claim, results, evidence) if settled != verdict else ()
    return _compare_with_half(half, evidence, verdict) if half else (settled, words)


def _compare_with_snapshots(
    claim: Claim, earlier: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str]:
    """Return the verdict, inconclusive if its estimates still move too fast, and how they moved since the snapshot.

    A difference that is `small` has no bound that it could move away from.
    """
    try:
        before = claim.evidence(earlier)
    except MissingResultsError as error:
        return "inconclusive", f"Before the last fifth of training {error}"
    drifts = [now.estimate.value - then.estimate.value for now, then in zip(evidence, before, strict=True)]
    moved = [
        replace(each, estimate=each.estimate.move(STEPS_AHEAD * drift))
        for each, drift in zip(evidence, drifts, strict=True)
    ]
    words = f"Since 4/5 of training: {', '.join(f'{drift:+.2g}' for drift in drifts)}"
    if verdict == "inconclusive":
        return verdict, words
    if combine_verdicts(moved) != verdict:
        return "inconclusive", f"{words}; at this pace, as many steps again would change the verdict ({verdict})"
    further = not small and all(_deepens(each, drift) for each, drift in zip(evidence, drifts, strict=True))
    return verdict, words + (", away from the bound" if further else "")


def _find_half(claim: Claim, results: Results, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the same evidence from runs of half the steps; none if they lack seeds, series or scores."""
    shorter = results.shorter
    try:
        if shorter is None or count_seeds(claim, shorter) < MIN_SEEDS:
            return ()
        half = find_evidence(claim, replace(shorter, looks=results.looks))
    except MissingResultsError:
        return ()
    known = all(math.isfinite(end) for each in half for end in each.estimate[:3])
    return half if known and [each.what for each in half] == [each.what for each in evidence] else ()


def _compare_with_half(
    half: Sequence[Evidence], evidence: Sequence[Evidence], verdict: VerdictWord
) -> tuple[VerdictWord, str]:
    """Return the verdict, inconclusive if twice the steps might change it, and the estimates with half of them."""
    words = f"With half of the steps: {', '.join(str(each.estimate) for each in half)}"
    moved = [_double_steps(now, then) for now, then in zip(evidence, half, strict=True)]
    if combine_verdicts(moved) == verdict:
        return verdict, words
    return "inconclusive", f"{words}; moving as far again would change the verdict ({verdict})"


def _double_steps(now: Evidence, half: Evidence) -> Evidence:
    """Return evidence after twice the steps, if its estimate moves as far again as from half of them.

    That is the most that it moves if learning curves flatten. The estimate e moves to 2 e - h, where h is that with
    half of the steps. Runs of both lengths are independent, so its half width is sqrt((2 w_e)^2 + w_h^2).
    """
    e, h = now.estimate, half.estimate
    moved = e.move(e.value - h.value)
    low = moved.value - math.hypot(2 * (e.value - e.low), h.high - h.value)
    high = moved.value + math.hypot(2 * (e.high - e.value), h.value - h.low)
    widened = (high - low) / (e.high - e.low) if e.high > e.low else 1.0
    chance = moved.chance and moved.chance.stretch(widened)
    return replace(now, estimate=moved._replace(low=low, high=high, chance=chance))


def _deepens(evidence: Evidence, drift: float) -> bool:
    """Return whether an estimate moves away from every end of its range."""
    value = evidence.estimate.value
    return all(drift * (value - end) > 0 for end in (evidence.low, evidence.high) if math.isfinite(end))
