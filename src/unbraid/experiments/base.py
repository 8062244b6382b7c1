"""Experiments: the data behind a table or figure of a paper, and the claims that its results must pass.

An experiment is a decorated function that draws its figure. The decorator states the rest: series (each a sweep), the
settings of four scales, scores and claims. Each claim turns results into evidence, from which `judging.py` makes a
verdict.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unbraid.errors import UsageError, unknown
from unbraid.experiments.claims import Claim
from unbraid.experiments.results import Results
from unbraid.metrics import Score
from unbraid.names import match_experiments
from unbraid.objectives import objective
from unbraid.registry import Facts, Registry
from unbraid.report.tables import Member

SCALES = ("smoke", "small", "budget", "paper")
PLACES = {"fig": "figure", "table": "table", "lemma": "lemma", "app": "appendix"}
REFINES, AS_LARGE_AS = "refines", "as_large_as"
"""Settings of a series: the name of the series it refines, and of the one whose number of parameters it matches."""

COUNTED_IN_STEPS = re.compile(r"(.+[._])?(steps|anneal|warmup)")
"""Settings that become twice as long together with a run, also those of a part (`latents.c.anneal`)."""

SNAPSHOT_SHARE = 0.8
"""Share of the steps after which runs keep a snapshot: before the last fifth of training."""


@dataclass(frozen=True)
class Scale:
    """Settings of an experiment at one scale.

    All series share `settings`, where a list or range is an axis; `per_series` adds to them for single series.
    `measures` maps the name of a further score of each run to (metric/protocol, its settings).
    """

    settings: Mapping[str, Any]
    per_series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measures: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment(Facts):
    """The facts of an experiment.

    series     sweeps by name; each holds its recipe and the settings that only this series has. A series that `refines`
               another one trains a stage on each finished run of it and takes that run's settings instead of the shared
               ones. A series that is `as_large_as` another one gets conv-wide networks with as many parameters as a
               model of the other one, frozen ones included.
    only       settings that choose runs of a series, if its sweep is shared, or the runs that a series refines
    metrics    scores of every run
    derived    functions that compute a further score from those of a run; `derived_by_series` replaces them for some
    measure    turns a scale's settings into members, for an experiment that trains nothing
    baselines  turns the sweeps' settings into further members, for methods that are not runs
    scores     columns of the table
    ranges     smallest and largest possible values of scores whose metric states none
    contrast   two series whose difference the table shows
    published  the paper's numbers, by series and score
    own_steps  series whose steps at `paper` are those of the paper or of its authors' code, not a choice of ours
    notes      what a reader of the results should know
    """

    claims: tuple[Claim, ...] = ()
    scales: Mapping[str, Scale] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    derived: Mapping[str, Callable[[Mapping[str, Score]], Score]] = field(default_factory=dict)
    derived_by_series: Mapping[str, Mapping[str, Callable[[Mapping[str, Score]], Score]]] = field(default_factory=dict)
    measure: Callable[[Mapping[str, Any]], Sequence[Member]] | None = None
    baselines: Callable[[Mapping[str, Mapping[str, Any]]], Sequence[Member]] | None = None
    contrast: tuple[str, str] | None = None
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def get_scale(self, name: str) -> Scale:
        if name not in SCALES:
            raise unknown("scale", name, SCALES)
        if name not in self.scales:
            raise UsageError(f"This experiment has no scale '{name}'; it has {', '.join(self.scales)}.")
        return self.scales[name]

    def with_seeds(self, scale: str, seeds: int | range) -> "Experiment":
        """Return the experiment with these seeds at a scale, in every series; a number of them counts from 0."""
        at, own = self.get_scale(scale), {"seed": range(seeds) if isinstance(seeds, int) else seeds}
        if len(own["seed"]) < 2:  # one seed is no axis of a sweep, so that more could not be added to it
            raise UsageError(f"seeds must be at least 2, not {len(own['seed'])}; a verdict needs 3.")
        of_series = {name: {**given, **(own if "seed" in given else {})} for name, given in at.per_series.items()}
        changed = replace(at, settings={**at.settings, **own}, per_series=of_series)
        return replace(self, scales={**self.scales, scale: changed})

    def with_values(self, scale: str, chosen: Mapping[str, Sequence[Any]]) -> "Experiment":
        """Return the experiment with some of the values of settings that its series sweep at a scale."""
        at, sweeps = self.get_scale(scale), self.build_sweeps(scale)
        own: dict[str, dict[str, Any]] = {name: {} for name in sweeps}
        for key, values in chosen.items():
            if key == "seed":
                raise UsageError("Choose seeds by --seeds.")
            swept = {name: each[key] for name, each in sweeps.items() if isinstance(each.get(key), (list, range))}
            if not swept:
                axes = ", ".join(axis for axis in self.list_axes(scale) if axis != "seed") or "only the seed"
                raise UsageError(f"No series sweeps {key} at scale {scale}; they sweep {axes}.")
            for name, axis in swept.items():
                own[name][key] = [value for value in axis if value in values]
                if missing := [value for value in values if value not in axis]:
                    raise UsageError(
                        f"{name} sweeps {key} over {', '.join(map(str, axis))} at scale {scale}, not {missing[0]!r}."
                    )
        of_series = {name: {**at.per_series.get(name, {}), **own[name]} for name in sweeps}
        return replace(self, scales={**self.scales, scale: replace(at, per_series=of_series)})

    def with_twice_the_steps(self, scale: str) -> "Experiment":
        """Return the experiment with twice the steps at a scale, in every series, and schedules twice as long."""
        at, longer = self.get_scale(scale), {}
        for name, settings in self.build_sweeps(scale).items():
            if not settings.get("steps"):
                raise UsageError(f"{name} has no setting `steps` at scale {scale} that could be doubled.")
            known = {key: each.default for key, each in objective[settings["recipe"]].settings.items()} | settings
            counted = {key: value for key, value in known.items() if COUNTED_IN_STEPS.fullmatch(key) and value}
            longer[name] = {key: _double(value) for key, value in counted.items()}
        of_series = {name: {**at.per_series.get(name, {}), **longer[name]} for name in self.series}
        return replace(self, scales={**self.scales, scale: replace(at, per_series=of_series)})

    def with_series(self, names: Sequence[str]) -> "Experiment":
        """Return the experiment with some of its series, and those that they refine or are as large as."""
        wanted: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in self.series:
                raise unknown("series", name, self.series)
            wanted.add(name)
            left += [self.series[name][key] for key in (REFINES, AS_LARGE_AS) if key in self.series[name]]
        contrast = self.contrast if wanted.issuperset(self.contrast or ()) else None
        chosen = {name: settings for name, settings in self.series.items() if name in wanted}
        return replace(self, series=chosen, contrast=contrast, baselines=None)

    def build_sweeps(self, scale: str) -> dict[str, dict[str, Any]]:
        """Return the settings of the sweep of each series."""
        at = self.get_scale(scale)
        return {
            name: {**({} if REFINES in settings else at.settings), **settings, **at.per_series.get(name, {})}
            for name, settings in self.series.items()
        }

    def find_data(self, name: str, scale: str) -> Any:
        """Return the data of a series; those of a stage are the data of the runs that it refines."""
        while REFINES in self.series[name]:
            name = self.series[name][REFINES]
        return self.build_sweeps(scale)[name].get("data")

    def list_axes(self, scale: str) -> list[str]:
        """Return the settings that have several values in some series, and the seed."""
        pairs = [pair for settings in self.build_sweeps(scale).values() for pair in settings.items()]
        return list(dict.fromkeys([*(key for key, value in pairs if isinstance(value, (list, range))), "seed"]))


def _double(steps: Any) -> Any:
    """Return twice a number of steps; of a list, of each."""
    return [_double(each) for each in steps] if isinstance(steps, (list, range)) else 2 * steps


class ExperimentRegistry(Registry[Callable[..., Any], Experiment]):
    """Experiments by name; `PAPER/fig2` says that it is figure 2 of a paper, whose name ends with its year."""

    def __call__(
        self, name: str, *, year: int | None = None, reference: str = "", claims: Any = (), **facts: Any
    ) -> Any:
        """Return the decorator; `reference` is the place in the paper, if the name does not say it.

        `claims` are a tuple of them, or a mapping from statements to the functions that find their evidence (or to
        whole claims).
        """
        paper, _, part = name.partition("/")
        kind, number = re.fullmatch(r"([a-z]*)([^-]*).*", part).groups()  # type: ignore[union-attr]
        place = reference or (f"{PLACES[kind]} {number}" if kind in PLACES else "")
        year = year or (int(paper[-4:]) if paper[-4:].isdigit() else None)
        if isinstance(claims, Mapping):
            claims = tuple(Claim(text, find) if callable(find) else find for text, find in claims.items())
        place = f"{paper}, {place}" if place else ""
        return super().__call__(name, year=year, reference=place, claims=claims, **facts)

    def add(self, name: str, summary: str, draw: Callable[..., Any], **facts: Any) -> None:
        """Register an experiment whose figure is `draw(results, make)`, which several experiments may share."""

        def figure(results: Results, make: Any) -> Any:
            return draw(results, make)

        figure.__doc__, figure.__module__, figure.__qualname__ = summary, draw.__module__, name
        self(name, **facts)(figure)


experiment = ExperimentRegistry("experiment", Experiment)
"""Decorator for an experiment: `@experiment("chen2018/fig2", claims=…, scales=…)`.

Its keywords are the fields of `Experiment`. The function draws the figure: it takes `Results` and the class `Figure`.
`experiment.add` takes a summary and such a function instead of decorating one.
"""


def find_experiments(name: str) -> list[str]:
    """Return the names of the experiments of PAPER, or the one named PAPER/ID."""
    return match_experiments(name, list(experiment))
