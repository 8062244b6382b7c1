"""One verdict from the evidence for a claim, and which runs and how many seeds it rests on."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from unbraid.experiments.claims import MIN_CHANCE, Claim, Evidence, VerdictWord
from unbraid.experiments.results import MissingResultsError, Results
from unbraid.experiments.statistics import widen_for
from unbraid.printable import format_setting
from unbraid.report.tables import Member, has_score

Setting = frozenset[tuple[str, str]]
"""Series and settings of a run as they are written in a file, without the seed."""

Place = tuple[Setting, str]
"""A setting and a score."""

Group = TypeVar("Group", bound=Hashable)

MIN_SEEDS = 3
"""Seeds that a verdict needs."""

FAR = 1e6
"""A score that is so much higher or lower is the best or the worst of all."""


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


def identify_setting(member: Member) -> Setting:
    """Return series and settings of a run as they are written in a file, without the seed."""
    written = {key: str(format_setting(value)) for key, value in member.settings.items() if key != "seed"}
    return frozenset(pair for pair in written.items() if pair[1] not in ("", "none"))


def find_series(claim: Claim, results: Results) -> list[str]:
    """Return the series that a claim reads."""
    return _find_read(claim, results, lambda member: str(member.settings["recipe"]))


def find_settings(claim: Claim, results: Results) -> list[Setting]:
    """Return the settings, each of one series, that a claim reads."""
    return _find_read(claim, results, identify_setting)


def count_seeds(claim: Claim, results: Results) -> int:
    """Return the seeds of the setting that has the fewest, among those that a claim reads."""
    results = drop_unscored(claim, results)
    if len({setting.finished for setting in results.settings}) == 1:
        return results.seeds
    read = set(find_settings(claim, results))
    members = tuple(m for m in results.members if identify_setting(m) in read)
    return replace(results, members=members or results.members).seeds


def drop_unscored(claim: Claim, results: Results) -> Results:
    """Return the results without runs that lack a score which the claim reads and other runs of their setting have.

    A score by another classifier is left out of further runs, and they are no further seeds of it.
    """
    scored = Counter((identify_setting(m), score) for m in results.members for score in m.scores if has_score(m, score))
    runs = Counter(identify_setting(m) for m in results.members if m.state == "finished")
    partly = {place for place, count in scored.items() if count < runs[place[0]]}
    read = find_read_scores(claim, results, partly)

    def lacks(member: Member) -> bool:
        setting = identify_setting(member)
        return any(setting == of and not has_score(member, score) for of, score in read)

    return _change_members(results, lambda m: None if lacks(m) else m) if read else results


def find_read_scores(claim: Claim, results: Results, places: Collection[Place]) -> set[Place]:
    """Return those scores of settings that a claim reads, in the sense of `find_settings`."""
    now = _list_values(claim, results) if places else None

    def is_read(place: Place, by: float | None) -> bool:
        def change(member: Member) -> Member:
            return _shift_scores(member, by, {place[1]}) if identify_setting(member) == place[0] else member

        return _list_values(claim, _change_members(results, change)) != now

    return {place for place in places if any(is_read(place, by) for by in (None, FAR, -FAR))}


def _find_read(claim: Claim, results: Results, name_group: Callable[[Member], Group]) -> list[Group]:
    """Return the groups of runs that a claim reads.

    Without one of them, or if all its scores were far higher or lower, its evidence would be missing or another. A
    claim that chooses a setting by its scores reads those that are not chosen, too.
    """
    names = {id(member): name_group(member) for member in results.members}
    now = _list_values(claim, results)

    def is_read(group: Group, by: float | None) -> bool:
        """Return whether the evidence is another if all scores of a group are higher by a number, or without it."""

        def change(member: Member) -> Member | None:
            if names[id(member)] != group:
                return member
            return None if by is None else _shift_scores(member, by, set(member.scores))

        return _list_values(claim, _change_members(results, change)) != now

    return [group for group in dict.fromkeys(names.values()) if any(is_read(group, by) for by in (None, FAR, -FAR))]


def _list_values(claim: Claim, results: Results) -> list[tuple[str, str]] | None:
    """Return what the evidence for a claim estimates, with its values; None if results lack some of it."""
    try:
        found = claim.evidence(results)
    except MissingResultsError:
        return None
    return [(each.what, str(each.estimate.value)) for each in found]  # as text, not-a-number equals itself


def _change_members(results: Results, change: Callable[[Member], Member | None]) -> Results:
    """Return the results with members that a function changed, without those for which it returns None."""
    changed = map(change, results.members)
    return replace(results, members=tuple(member for member in changed if member is not None))


def _shift_scores(member: Member, by: float | None, names: Collection[str]) -> Member:
    """Return a member with some of its scores higher by a number, or without them if that is None."""
    scores = {name: score for name, score in member.scores.items() if by is not None or name not in names}
    scores |= {n: replace(s, value=s.value + (by or 0.0)) for n, s in scores.items() if n in names}
    return member._replace(scores=scores)
