"""Scores: records that name their protocol, and the registry of the functions that compute them.

A metric is a decorated function `(evaluation, *, settings) -> Score | list[Score]` with a name `metric/protocol`. Most
metrics wrap a function on plain arrays in the same file.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from typing import Any

from unbraid.errors import unknown
from unbraid.metrics.needs import NEEDS
from unbraid.registry import Facts, Registry
from unbraid.store import replace_non_finite


@dataclass(frozen=True)
class MetricFacts(Facts):
    """Needs, promises and costs of a metric.

    `needs` names conditions of `unbraid.metrics.needs`, such as `factors`. Tests check the promises: `bounds`,
    `invariant` (changes of the codes that leave the score as it is: `order`, `sign`, `scale`), `perfect` (the value of
    a perfect code), `noise` (the value of pure noise) and `deterministic`. `trial` holds settings for a quick test. A
    `costly` metric takes minutes and runs only under its full name. A metric of codes may state the seconds that a core
    needs for 10,000 rows (`core_seconds`), so that another process computes it beside the rest. With `prefers_gpu`
    codes on a GPU stay there, however few they are; with `prefers_core` they leave it, however many they are.
    """

    needs: tuple[str, ...] = ()
    bounds: tuple[float | int, float | int] | None = None
    invariant: tuple[str, ...] = ()
    perfect: Any = None
    noise: Any = None
    deterministic: bool = False
    costly: bool = False
    core_seconds: float = 0.0
    prefers_gpu: bool = False
    prefers_core: bool = False
    trial: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise unknown("need", need, NEEDS, of="a metric")


metric: Registry[Callable[..., Any], MetricFacts] = Registry("metric", MetricFacts)
"""Decorator for a metric: `@metric("mig/exact", reference="chen2018", needs=("factors",))`."""


def metric_protocol(name: str, summary: str, reference: str, **facts: Any) -> Callable[[Any], Any]:
    """Return the decorator that registers one protocol of a function `(evaluation, protocol, *, settings)`.

    Use one decorator per protocol on a function whose protocols share their settings. A function whose second argument
    is `family` gets the part of the name before the protocol instead.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _, which, *settings = signature(function).parameters.values()
        family, _, protocol = name.partition("/")
        word = family if which.name == "family" else protocol

        def call(evaluation: Any, **chosen: Any) -> Any:
            return function(evaluation, word, **chosen)

        register_variant(name, summary, function, call, settings, reference=reference, **facts)
        return function

    return register


def register_variant(
    name: str, summary: str, function: Callable[..., Any], call: Any, settings: Iterable[Parameter], **facts: Any
) -> None:
    """Register `call(evaluation, **settings)`, a variant of a function, as a metric with its own summary."""
    call.__doc__, call.__module__ = summary, function.__module__
    call.__qualname__, call.__wrapped__ = f"{function.__qualname__}[{name}]", function
    call.__signature__ = Signature([Parameter("evaluation", Parameter.POSITIONAL_OR_KEYWORD), *settings])
    metric(name, **facts)(call)


RANDOM_ROWS = "random rows"
"""Mark of a record whose rows were drawn."""

RESAMPLES = "resamples"
"""Setting that changes the interval of a score, but not its value."""

DERIVED = "derived from"
"""Entry in the details of a score that was computed from another one: its name. The metric's range is not its own."""

NETWORK, WEIGHTS = "network", "weights"
"""Entry in the details of a score about the feature network that measured it, and in it the name or digest of weights.

Scores by networks with other weights are not comparable.
"""


@dataclass(frozen=True)
class Score:
    """A measured number with its protocol, number of samples, 95% interval, duration in seconds and details.

    `covers` says what the interval is for (`unbraid.metrics.intervals`), or "none: …" and why there is none. `chance`
    is the value of codes that know nothing of these factors, `ceiling` that of a perfect code
    (`unbraid.metrics.levels`).
    """

    metric: str
    protocol: str
    value: float
    samples: int
    interval: tuple[float, float] | None = None
    part: str | None = None
    predictor: str | None = None
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    covers: str = ""
    chance: float | None = None
    ceiling: float | None = None

    @property
    def name(self) -> str:
        """`metric/protocol`, followed by the part if there are several: `dci/gbt/completeness`."""
        return "/".join(part for part in (self.metric, self.protocol, self.part) if part)

    def __str__(self) -> str:
        """Return e.g. `mig/exact .81 (.79 to .83), 10,000 rows`."""
        low, high = self.interval or (self.value, self.value)
        within = f" ({_show(low)} to {_show(high)})" if low < high else ""
        return f"{self.name} {_show(self.value)}{within}, {self.samples:,} rows"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    @property
    def deterministic(self) -> bool:
        """True if nothing about it is random, so that its interval is the value."""
        name = f"{self.metric}/{self.protocol}"
        return name in metric and metric[name].facts.deterministic

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest possible value as the metric states them; infinite ends if it states none."""
        name = "" if DERIVED in self.details else f"{self.metric}/{self.protocol}"
        stated = metric[name].facts.bounds if name in metric else None
        return (-math.inf, math.inf) if stated is None else stated

    @property
    def has_default_settings(self) -> bool:
        """True if it was measured with the metric's default settings and on all rows."""
        if RANDOM_ROWS in str(self.details.get("rows", "")):
            return False
        name = f"{self.metric}/{self.protocol}"
        defaults = metric[name].resolve({}) if name in metric else {}
        stored = self.details.get("settings", {}).items()
        settings = {key: value for key, value in stored if key in defaults and key != RESAMPLES}
        return replace_non_finite(settings) == replace_non_finite({key: defaults[key] for key in settings})

    def as_record(self) -> dict[str, Any]:
        """Return the mapping that scores.jsonl holds."""
        record = {key: getattr(self, key) for key in self.__dataclass_fields__}
        record["interval"] = None if self.interval is None else list(self.interval)
        record["details"] = dict(self.details)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Score":
        """Return the score of a record; null stands for a number that is not finite."""
        fields = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
        if "value" in fields:
            fields["value"] = _number(fields["value"])
        if fields.get("interval") is not None:
            fields["interval"] = tuple(map(_number, fields["interval"]))
        return cls(**fields)


def _show(value: float) -> str:
    """Return a number with two digits behind the point, or three significant ones, without a leading zero."""
    text = f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"
    text = f"{value:,.1f}" if abs(value) >= 100 else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _number(stored: float | None) -> float:
    return math.nan if stored is None else stored
