"""Verdicts on claims, from the evidence that results give.

    holds           the 90% interval of every estimate lies in the range that the claim states
    does not hold   one interval lies completely outside its range, or a difference is too small: of all choices of one
                    seed per setting, fewer than two of three have the claimed sign (the 90% interval of this share
                    ends below 2/3). With several estimates, intervals are wider for this purpose
    inconclusive    anything else, and always: scale smoke, fewer than 3 seeds, or estimates that had not settled

An estimate has settled if its verdict would be the same after as many steps again, at the pace of the last fifth. If it
would not, but there are runs of half the steps, they decide: the estimate moves as far again as from them.
Whoever adds seeds until a claim is settled will settle false ones, too: at the k-th look, intervals have the level
1 - 0.1 / k.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from unbraid.experiments.base import (
    MIN_CHANCE,
    SNAPSHOT_SHARE,
    Claim,
    Evidence,
    MissingResultsError,
    Results,
    Verdict,
    VerdictWord,
)
from unbraid.experiments.statistics import foresee, widen_for
from unbraid.report.tables import select_finished

MIN_SEEDS, MAX_SEEDS = 3, 1000
"""Seeds that a verdict needs, and the most that are suggested."""

MAX_UNCHECKED_SHARE = 0.1
"""Largest share of runs without a snapshot with which a claim still gets a verdict."""

STEPS_AHEAD = 1 / (1 - SNAPSHOT_SHARE)
"""As many steps again as the whole training, in units of those since the snapshot."""


def judge(claim: Claim, results: Results) -> Verdict:
    """Return the verdict on a claim, with its reason."""
    looks = results.looks.get(claim.text, 1)
    try:
        evidence = _find_evidence(claim, results, looks)
    except MissingResultsError as error:
        return Verdict(claim.text, "inconclusive", f"{error}.", looks=looks)
    found = "; ".join(f"{e.what}: {e.estimate}, claimed {e.wanted}" for e in evidence)
    weak = _explain_weakness(results, claim.trained)
    if weak:
        return Verdict(claim.text, "inconclusive", f"{found}.{weak}", evidence, looks)
    verdict = combine_verdicts(evidence)
    small = _explain_smallness(evidence) if verdict == "does not hold" else ""
    found += small
    if verdict == "inconclusive":
        found += _suggest_seeds(evidence, count_seeds(claim, results), looks)
    if claim.trained and results.earlier is not None:
        earlier = replace(results.earlier, whole=results)
        settled, drift = _judge_settling(claim, earlier, evidence, verdict, bool(small))
        half = _find_half(claim, results, evidence, looks) if settled != verdict else ()
        if half:
            settled, drift = _compare_with_half(half, evidence, verdict)
        verdict, found = settled, f"{found}. {drift}"
    return Verdict(claim.text, verdict, f"{found}.", evidence, looks)


def _find_evidence(claim: Claim, results: Results, looks: int) -> tuple[Evidence, ...]:
    """Return the evidence for a claim, with intervals that are wider if this is not the first look at it."""
    found = claim.evidence(results)
    return tuple(replace(each, estimate=widen_for(looks, each.estimate, max_freedom=math.inf)) for each in found)


def combine_verdicts(evidence: Sequence[Evidence]) -> VerdictWord:
    """Return "holds" if every piece of evidence holds, and "does not hold" if one does not.

    One of several intervals lies outside by chance more often than one alone; to refute a claim, each of k intervals
    therefore has the level 1 - 0.1 / k.
    """
    wide = _widen_to_refute(evidence)
    if "does not hold" in {each.verdict for each in wide}:
        return "does not hold"
    return "holds" if {each.verdict for each in evidence} == {"holds"} else "inconclusive"


def _widen_to_refute(evidence: Sequence[Evidence]) -> list[Evidence]:
    return [replace(each, estimate=widen_for(len(evidence), each.estimate)) for each in evidence]


def _explain_smallness(evidence: Sequence[Evidence]) -> str:
    """Return that a difference is too small, as the end of a sentence; nothing if a claim fails for another reason."""
    wide = _widen_to_refute(evidence)
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


def _judge_settling(
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


def _find_half(claim: Claim, results: Results, evidence: Sequence[Evidence], looks: int) -> tuple[Evidence, ...]:
    """Return the same evidence from runs of half the steps; none if they lack seeds, series or scores."""
    shorter = results.shorter
    try:
        if shorter is None or count_seeds(claim, shorter) < MIN_SEEDS:
            return ()
        half = _find_evidence(claim, shorter, looks)
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


def _explain_weakness(results: Results, trained: bool) -> str:
    """Return the reason why these results allow no verdict, or an empty text."""
    if results.scale == "smoke":
        return " A smoke run only shows that the program works."
    if results.seeds < MIN_SEEDS:
        return f" A verdict needs {MIN_SEEDS} seeds of each setting, and one has {results.seeds}."
    runs = len(select_finished(results.members))
    if trained and len(results.unchecked) > MAX_UNCHECKED_SHARE * runs:
        return f" {len(results.unchecked)} of {runs} runs were shorter than the paper's and have no snapshot of 4/5."
    return ""


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


def _suggest_seeds(evidence: Sequence[Evidence], seeds: int, looks: int) -> str:
    """Return how many seeds would settle a claim, as the end of a sentence; nothing if an estimate is missing."""
    if not evidence or not all(math.isfinite(end) for each in evidence for end in each.estimate[:3]):
        return ""
    if not all(each.narrows for each in evidence):
        return ". More seeds would not settle it"
    needed = count_needed_seeds(evidence, seeds, looks)
    number = f"about {needed}" if math.isfinite(needed) else f"more than {MAX_SEEDS:,}"
    return f". At the effect seen so far, {number} seeds would settle it (--seeds)"
