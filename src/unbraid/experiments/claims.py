"""Claims: a statement of a paper, evidence for or against it as estimates and ranges, and the verdict on it.

`evidence.py` finds evidence, and `judging.py` makes verdicts of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from unbraid.experiments.results import Results
from unbraid.experiments.statistics import Estimate

VerdictWord = Literal["holds", "does not hold", "inconclusive"]

MIN_CHANCE = 2 / 3
"""Share of repetitions with one seed of each setting that have to show a difference; half of them do so by chance."""


@dataclass(frozen=True)
class Evidence:
    """An estimate, and the range that the claim states for it: above `low` and below `high`."""

    what: str
    estimate: Estimate
    low: float = -math.inf
    high: float = math.inf
    narrows: ClassVar[bool] = True
    """False if more seeds do not narrow the interval as they do that of a mean, so that none are suggested."""

    @property
    def verdict(self) -> VerdictWord:
        if not all(map(math.isfinite, self.estimate[:3])):
            return "inconclusive"
        if self.best_chance < MIN_CHANCE:
            return "does not hold"
        if self.lies_inside:
            return "holds"
        return "does not hold" if self.lies_outside else "inconclusive"

    @property
    def lies_inside(self) -> bool:
        """True if the whole interval lies in the range."""
        return bool(self.low < self.estimate.low and self.estimate.high < self.high)

    @property
    def lies_outside(self) -> bool:
        """True if the whole interval lies outside of the range."""
        return bool(self.estimate.high < self.low or self.estimate.low > self.high)

    @property
    def side(self) -> int:
        """The side of its range on which an estimate lies that is outside or too small: 1 above, -1 below."""
        return 1 if math.isinf(self.low) or self.estimate.low > self.high else -1

    @property
    def best_chance(self) -> float:
        """Largest likely share of repetitions that show the claimed difference: the end of its interval.

        A repetition has one seed of each setting (mcgraw1992's common language effect size). It is 1 if the claim is
        not about the sign of a difference, or if the share is unknown.
        """
        chance = self.estimate.chance
        if chance is None or {self.low, self.high} not in ({0.0, math.inf}, {-math.inf, 0.0}):
            return 1.0
        return chance.high if self.low == 0 else 1 - chance.low

    @property
    def wanted(self) -> str:
        """Range of the claim, in words."""
        if math.isinf(self.low):
            return f"below {self.high:.3g}"
        return f"above {self.low:.3g}" if math.isinf(self.high) else f"from {self.low:.3g} to {self.high:.3g}"

    @property
    def margin(self) -> float:
        """How far inside its range the interval lies, in its own half widths; negative if it crosses an end."""
        half = max((self.estimate.high - self.estimate.low) / 2, 1e-12)
        margin = min(self.estimate.low - self.low, self.high - self.estimate.high) / half
        return -math.inf if math.isnan(margin) else margin


class WideEvidence(Evidence):
    """Evidence whose interval more seeds do not narrow, or not in a way that could be foreseen."""

    narrows: ClassVar[bool] = False


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and the function that finds evidence for or against it."""

    text: str
    evidence: Callable[[Results], Sequence[Evidence]]
    trained: bool = True
    """True if the statement depends on how long training takes, so that its estimates have to settle."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, and the reason for it."""

    claim: str
    verdict: VerdictWord
    why: str
    evidence: tuple[Evidence, ...] = ()
    looks: int = 1

    def as_record(self) -> dict[str, Any]:
        """Return a plain mapping for verdicts.json."""
        evidence = [{"what": e.what, **e.estimate.as_record(), "wanted": e.wanted} for e in self.evidence]
        facts = {"claim": self.claim, "verdict": self.verdict, "why": self.why, "looks": self.looks}
        return {**facts, "evidence": evidence}
