"""Scores: records that carry their protocol, and the registry of the functions that make them.

A metric is a decorated function `(evaluation, *, settings) -> Score | list[Score]`. Its name is `metric/protocol`; a
number without its protocol is never printed. Most are thin covers of a function on plain arrays beside them.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unbraid.errors import unknown
from unbraid.metrics.needs import NEEDS
from unbraid.registry import Facts, Registry
from unbraid.store import replace_non_finite


@dataclass(frozen=True)
class MetricFacts(Facts):
    """What a metric needs and promises.

    `needs` names conditions of `unbraid.metrics.needs`, as `factors`. `bounds`, `invariant`
    (changes of the codes that leave the score as it is: `order`, `sign`, `scale`), `perfect` (its values of a perfect
    code), `noise` (its value of pure noise) and `certain` (nothing about it is random) are promises that tests check;
    `trial` holds settings that make it quick there. A `costly` metric takes minutes and runs only when asked for by its
    full name. A `processor` metric never uses a GPU: it returns `Sheet.work`, which another process can do.
    """

    needs: tuple[str, ...] = ()
    bounds: tuple[float | int, float | int] | None = None
    invariant: tuple[str, ...] = ()
    perfect: Any = None
    noise: Any = None
    certain: bool = False
    costly: bool = False
    processor: bool = False
    trial: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise unknown("need", need, NEEDS, of="a metric")


metric: Registry[Callable[..., Any], MetricFacts] = Registry("metric", MetricFacts)
"""Decorator for a metric: `@metric("mig/exact", year=2018, reference="chen2018", needs=("factors",))`."""


def metric_protocol(name: str, summary: str, **facts: Any) -> Callable[[Any], Any]:
    """Return the decorator that registers one protocol of a function `(evaluation, protocol, *, settings)`.

    A function whose protocols have the same settings has several of these, each with its own summary and facts.
    """

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(make)
        shown = [parameter for key, parameter in signature.parameters.items() if key != "protocol"]

        def one(evaluation: Any, **settings: Any) -> Any:
            return make(evaluation, name.partition("/")[2], **settings)

        one.__doc__, one.__module__, one.__qualname__ = summary, make.__module__, f"{make.__qualname__}[{name}]"
        one.__wrapped__ = make  # type: ignore[attr-defined]
        one.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        metric(name, **facts)(one)
        return make

    return register


LOCATELLO: dict[str, Any] = {"year": 2019, "reference": "locatello2019"}
"""Source of the protocols that are called disentanglement_lib."""

RANDOM = "random rows"
"""What a record says of rows that were drawn."""


@dataclass(frozen=True)
class Score:
    """One measured number: what, by which protocol, from how many samples, how certain, how long it took."""

    metric: str
    protocol: str
    value: float
    samples: int
    interval: tuple[float, float] | None = None
    part: str | None = None
    predictor: str | None = None
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`metric/protocol`, and which part of it where it has several: `dci/gbt/completeness`."""
        return "/".join(part for part in (self.metric, self.protocol, self.part) if part)

    @property
    def certain(self) -> bool:
        """Whether nothing about it is random, so that its interval is the value."""
        name = f"{self.metric}/{self.protocol}"
        return name in metric and metric[name].facts.certain

    @property
    def usual(self) -> bool:
        """Whether it was measured with the metric's usual settings, and on all rows that scores are of."""
        if RANDOM in str(self.details.get("rows", "")):
            return False
        name = f"{self.metric}/{self.protocol}"
        usual = metric[name].resolve({}) if name in metric else {}
        given = {key: value for key, value in self.details.get("settings", {}).items() if key in usual}
        return replace_non_finite(given) == replace_non_finite({key: usual[key] for key in given})

    def as_record(self) -> dict[str, Any]:
        """Plain mapping for scores.jsonl."""
        record = {key: getattr(self, key) for key in self.__dataclass_fields__}
        record["interval"] = None if self.interval is None else list(self.interval)
        record["details"] = dict(self.details)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Score":
        """Inverse of `as_record`, also where a file has null for a number that is not finite."""
        fields = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
        if "value" in fields:
            fields["value"] = _number(fields["value"])
        if fields.get("interval") is not None:
            fields["interval"] = tuple(map(_number, fields["interval"]))
        return cls(**fields)


def _number(stored: float | None) -> float:
    return math.nan if stored is None else stored
