"""Whether a claim's estimates had settled: whether its verdict would be the same after as many steps again.

Learning curves flatten, so as many steps again move an estimate at most as far as the latest steps did, at their mean
pace. A snapshot at 4/5 of training gives the pace of the last fifth. Where the learning rate falls to 0, scores move in
the last fifth because the rate falls, and would do so at the end of any schedule. Runs of another length have a whole
schedule of their own: those of half the steps give the pace of the second half of training, and those of twice the
steps the answer itself. They are asked where a verdict fails by the snapshots, and can confirm it. They never replace
it: if twice the steps give the opposite verdict, the claim is open.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unbraid.experiments.base import SNAPSHOT_SHARE, Claim, Evidence, MissingResultsError, Results, VerdictWord
from unbraid.experiments.combining import (
    MIN_SEEDS,
    combine_verdicts,
    count_seeds,
    find_evidence,
    find_refutations,
    find_series,
)
from unbraid.experiments.lengths import HALF, TWICE, Length
from unbraid.report.tables import Member, format_setting

STEPS_AHEAD = 1 / (1 - SNAPSHOT_SHARE)
"""As many steps again as the whole training, in units of those since the snapshot."""

TOLD = {
    TWICE: "Runs of twice the steps give",
    HALF: "By runs of half the steps, twice as many give",
}
"""What a reason says of the estimates after twice the steps, by the runs that they come from."""

HALVES_AHEAD = 2
"""As many steps again as the whole training, in units of those since half of it."""


def judge_settling(
    claim: Claim, results: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str]:
    """Return the verdict, inconclusive if its estimates still move too fast, and how they moved.

    A difference that is `small` has no bound that it could move away from.
    """
    settled, words, warning = _compare_with_snapshots(claim, results, evidence, verdict, small)
    length, doubled = find_doubled_evidence(claim, results)
    if length is None:
        return settled, words + warning
    later = combine_verdicts(doubled)
    if keeps_verdict(doubled, evidence, verdict):
        settled, warning = verdict, ""
    elif length is TWICE and "inconclusive" not in (verdict, later):
        settled, warning = "inconclusive", f"; with twice the steps, it {later}"
    return settled, f"{words}{warning}. {TOLD[length]} {', '.join(str(each.estimate) for each in doubled)}"


def _compare_with_snapshots(
    claim: Claim, results: Results, evidence: Sequence[Evidence], verdict: VerdictWord, small: bool
) -> tuple[VerdictWord, str, str]:
    """Return the verdict, inconclusive if the pace of the last fifth would change it, the movement, and a warning."""
    assert results.earlier is not None
    try:
        before = claim.evidence(replace(results.earlier, whole=results))
    except MissingResultsError as error:
        return "inconclusive", f"Before the last fifth of training {error}", ""
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


def find_doubled_evidence(claim: Claim, results: Results) -> tuple[Length | None, tuple[Evidence, ...]]:
    """Return the evidence after twice the steps, and the length of the runs that give it.

    Runs of twice the steps come first. Those of half the steps give intervals with the noise of both lengths. There is
    no length if neither has the settings, seeds and scores that the claim needs.
    """
    for length, double in ((TWICE, lambda other: other), (HALF, lambda other: double_steps(results, other))):
        other = results.other_lengths.get(length.name)
        found = () if other is None else _find_evidence_beside(claim, results, double(other), other.looks)
        if found:
            return length, found
    return None, ()


def _find_evidence_beside(
    claim: Claim, whole: Results, doubled: Results, looks: Mapping[str, int]
) -> tuple[Evidence, ...]:
    """Return the evidence of runs beside the whole ones; none if they lack settings, seeds or scores."""
    try:
        if count_seeds(claim, doubled) < MIN_SEEDS or not _have_same_settings(claim, whole, doubled):
            return ()
        together = sum(each.get(claim.text, 1) for each in (whole.looks, looks)) - 1
        found = find_evidence(claim, replace(doubled, looks={claim.text: together}))
    except MissingResultsError:
        return ()
    return found if all(math.isfinite(end) for each in found for end in each.estimate[:3]) else ()


def double_steps(whole: Results, half: Results) -> Results:
    """Return runs after twice the steps, if each score s moves on at the pace that it had since half of the steps.

    It becomes s + 2 (s - h), with the score h of the run of half the steps that has the same settings and seed. Runs
    without such a partner are left out.
    """
    partners = {_identify(member): member for member in half.members if member.state == "finished"}
    members = []
    for member in whole.members:
        if member.state == "finished" and (partner := partners.get(_identify(member))):
            scores = {
                name: replace(score, value=score.value + HALVES_AHEAD * (score.value - partner.scores[name].value))
                for name, score in member.scores.items()
                if name in partner.scores
            }
            members.append(member._replace(scores=scores))
    return replace(whole, members=tuple(members), earlier=None, other_lengths={}, models=None)


def _have_same_settings(claim: Claim, one: Results, other: Results) -> bool:
    """Return whether both have runs at the same settings in each series that a claim reads."""
    series = find_series(claim, one)

    def list_places(results: Results) -> set[frozenset[tuple[str, str]]]:
        read = (member for name in series for member in results.select_members(name))
        return {_identify(member, without="seed") for member in read}

    return list_places(one) == list_places(other)


def _identify(member: Member, without: str = "") -> frozenset[tuple[str, str]]:
    """Return the settings of a run as they are written in a file."""
    written = {key: str(format_setting(value)) for key, value in member.settings.items() if key != without}
    return frozenset(pair for pair in written.items() if pair[1] not in ("", "none"))
