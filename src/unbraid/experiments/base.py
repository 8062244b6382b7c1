"""Experiments: what a table or figure of a paper needs, as data, and what it must show, as claims that are tested.

An experiment is a decorated function that draws its figure. All else is stated in the decorator: series (each a
sweep), the settings of four scales, scores, and claims. A claim is evidence from results, and the evidence decides:

    holds           every estimate's 90% interval lies where the claim puts it
    does not hold   one of them lies wholly elsewhere
    inconclusive    all else; also fewer than 3 seeds, runs that had not settled, and whatever is seen at scale smoke
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from unbraid.errors import UnbraidError, UsageError, unknown
from unbraid.experiments.model_cache import ModelCache
from unbraid.experiments.statistics import Estimate
from unbraid.metrics import Evaluation, Score
from unbraid.registry import Facts, Registry
from unbraid.report.tables import Member, Setting, finished, has, settings_of

SCALES = ("smoke", "small", "budget", "paper")
MIN_SEEDS = 3
REFINES, AS_LARGE_AS = "refines", "as_large_as"
"""Settings of a series that name the series which it refines, and one whose models have as many parameters."""

MAX_UNSETTLED_SHARE = 0.1
"""Share of the runs that may still move when a verdict is given."""

VerdictWord = Literal["holds", "does not hold", "inconclusive"]


class MissingResultsError(UnbraidError):
    """Results that a claim needs are not there."""


@dataclass(frozen=True)
class StandIn:
    """A data set, and another one that takes its place where its files are not here."""

    wanted: str
    instead: str

    def __str__(self) -> str:
        return self.wanted


@dataclass(frozen=True)
class Scale:
    """Settings of an experiment at one scale.

    `settings` are shared by all series, lists are axes; `own` has what a series alone has at this scale; `measures`
    names further scores of each run: (metric/protocol, its settings).
    """

    settings: Mapping[str, Any]
    per_series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measures: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Scores of all runs; the setting `recipe` of a member is the name of its series."""

    members: tuple[Member, ...]
    scale: str = "small"
    unsettled: frozenset[str] = frozenset()
    """Runs that still moved when training ended."""
    models: ModelCache | None = None
    """Their models, for figures that show one."""

    @property
    def series(self) -> list[str]:
        """Names of the series."""
        return list(dict.fromkeys(member.settings["recipe"] for member in self.members))

    @property
    def settings(self) -> list[Setting]:
        """Members by series and all that varies but the seed."""
        return settings_of(self.members)

    @property
    def seeds(self) -> int:
        """Finished runs of the setting that has the fewest."""
        return min((setting.finished for setting in self.settings), default=0)

    @property
    def score_names(self) -> list[str]:
        """Scores that some member has."""
        return list(dict.fromkeys(name for member in self.members for name in member.scores))

    def group_scores(self, series: str, key: str | None, *scores: str) -> dict[Any, np.ndarray]:
        """Scores [seed, score] of a series by the value of a setting (or all under None), for finished runs."""
        made: dict[Any, list[list[float]]] = {}
        for member in self.select_members(series, *scores):
            value = None if key is None else member.settings[key]
            made.setdefault(value, []).append([member.scores[score].value for score in scores])
        return {value: np.array(made[value]) for value in sorted(made, key=lambda v: (str(type(v)), v))}

    def select_members(self, series: str, *scores: str) -> list[Member]:
        """Finished runs of a series that have some scores."""
        own = [m for m in self.members if m.settings["recipe"] == series and all(has(m, score) for score in scores)]
        if not own:
            raise MissingResultsError(f"no finished run of {series} has {' and '.join(scores)}")
        return own

    def select_best(self, series: str, score: str) -> Member:
        """The run of a series with the highest score."""
        return max(self.select_members(series, score), key=lambda member: member.scores[score].value)

    def load_evaluation(self, member: Member) -> Evaluation:
        """The model of a run on its data."""
        if self.models is None:
            raise MissingResultsError("these results are scores without models")
        return self.models.load_evaluation(member.run)


@dataclass(frozen=True)
class Evidence:
    """An estimate, and where the claim puts it: above `low` and below `high`."""

    what: str
    estimate: Estimate
    low: float = -math.inf
    high: float = math.inf

    @property
    def verdict(self) -> VerdictWord:
        """What this alone says."""
        if not all(map(math.isfinite, self.estimate)):
            return "inconclusive"
        if self.low < self.estimate.low and self.estimate.high < self.high:
            return "holds"
        return "does not hold" if self.estimate.high < self.low or self.estimate.low > self.high else "inconclusive"

    @property
    def wanted(self) -> str:
        """Where the value should be, in words."""
        if math.isinf(self.low):
            return f"below {self.high:.3g}"
        return f"above {self.low:.3g}" if math.isinf(self.high) else f"from {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class Claim:
    """What a paper says, and the evidence for it."""

    text: str
    evidence: Callable[[Results], Sequence[Evidence]]
    trained: bool = True
    """Whether what it is about moves with the steps of the training, so that runs have to be settled."""


@dataclass(frozen=True)
class Verdict:
    """What results say about a claim, and why."""

    claim: str
    verdict: VerdictWord
    why: str
    evidence: tuple[Evidence, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Plain mapping for verdicts.json."""
        evidence = [
            {"what": e.what, **{k: _finite_or_none(v) for k, v in e.estimate._asdict().items()}, "wanted": e.wanted}
            for e in self.evidence
        ]
        return {"claim": self.claim, "verdict": self.verdict, "why": self.why, "evidence": evidence}


@dataclass(frozen=True)
class Experiment(Facts):
    """The facts of an experiment.

    `series` are sweeps by name, each with its recipe and what it alone sets; their runs are scored by `metrics`. Of the
    sweep of a series that `only` names, which it then shares with others, those runs are taken whose settings fit. A
    series that `refines` another one has a stage upon each finished run of it (of those that `only` chooses), with the
    settings of that run; of the settings that all series share it takes none. One that is `as_large_as` another has
    networks of the family conv-wide with as many parameters as a model of the other has in all, frozen ones included.
    `derived` makes further scores out of a run's own. Where nothing is trained, `measure` turns a scale's settings into
    members. `beside` turns the sweeps' settings into further members, of methods that are no runs. `scores` are the
    table's columns, `contrast` names two series whose differences it shows, `published` the paper's own numbers by
    series and score, `notes` what a reader should know.
    """

    claims: tuple[Claim, ...] = ()
    scales: Mapping[str, Scale] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    derived: Mapping[str, Callable[[Mapping[str, Score]], Score]] = field(default_factory=dict)
    measure: Callable[[Mapping[str, Any]], Sequence[Member]] | None = None
    baselines: Callable[[Mapping[str, Mapping[str, Any]]], Sequence[Member]] | None = None
    contrast: tuple[str, str] | None = None
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def get_scale(self, name: str) -> Scale:
        """The settings of a scale."""
        if name not in SCALES:
            raise unknown("scale", name, SCALES)
        if name not in self.scales:
            raise UsageError(f"This experiment has no scale '{name}'; it has {', '.join(self.scales)}.")
        return self.scales[name]

    def build_sweeps(self, scale: str) -> dict[str, dict[str, Any]]:
        """Settings of the sweep of each series."""
        at = self.get_scale(scale)
        shared = {name: {} if REFINES in own else at.settings for name, own in self.series.items()}
        return {name: {**shared[name], **own, **at.per_series.get(name, {})} for name, own in self.series.items()}

    def list_axes(self, scale: str) -> list[str]:
        """Settings with several values in some series, the seed among them."""
        of_series = self.build_sweeps(scale).values()
        several = [key for own in of_series for key, value in own.items() if isinstance(value, (list, range))]
        return list(dict.fromkeys([*several, "seed"]))


experiment: Registry[Callable[..., Any], Experiment] = Registry("experiment", Experiment)
"""Decorator for an experiment: `@experiment("chen2018/fig2", year=2018, reference="figure 2", claims=…, scales=…)`.

Its keywords are the fields of `Experiment`. The function draws the figure: it takes `Results` and the class `Figure`.
"""


def find_experiments(name: str) -> list[str]:
    """Experiments that are meant by PAPER or PAPER/ID; a slash behind it, as shells add to folders, means nothing."""
    name = name.removesuffix("/")
    paper, slash, _ = name.partition("/")
    papers = {each.partition("/")[0] for each in experiment}
    if paper not in papers:
        raise unknown("paper", paper, papers)
    own = [each for each in experiment if each.startswith(f"{paper}/")]
    if slash and name not in own:
        raise unknown("experiment", name, own)
    return [name] if slash else own


def judge(claim: Claim, results: Results) -> Verdict:
    """What results say about a claim."""
    try:
        evidence = tuple(claim.evidence(results))
    except MissingResultsError as error:
        return Verdict(claim.text, "inconclusive", f"{error}.")
    found = "; ".join(f"{e.what}: {e.estimate}, claimed {e.wanted}" for e in evidence)
    weak = _explain_weakness(results, claim.trained)
    return Verdict(claim.text, "inconclusive" if weak else combine_verdicts(evidence), f"{found}.{weak}", evidence)


def combine_verdicts(evidence: Sequence[Evidence]) -> VerdictWord:
    """A claim holds if all of its evidence does, and does not if one piece does not."""
    words = {each.verdict for each in evidence}
    if "does not hold" in words:
        return "does not hold"
    return "holds" if words == {"holds"} else "inconclusive"


def _explain_weakness(results: Results, trained: bool = True) -> str:
    """Why no verdict can be given, whatever the numbers are; empty if one can."""
    if results.scale == "smoke":
        return " A smoke run only shows that the program works."
    if results.seeds < MIN_SEEDS:
        return f" A verdict needs {MIN_SEEDS} seeds of each setting, and one has {results.seeds}."
    runs = len(finished(results.members))
    if trained and len(results.unsettled) > MAX_UNSETTLED_SHARE * runs:
        return f" {len(results.unsettled)} of {runs} runs had not settled."
    return ""


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
