"""The plan of a sweep: the values of every setting, and the metrics."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from unbraid.config import FORMAT, to_plain
from unbraid.errors import UsageError
from unbraid.plain_text import add_sum, check_sum, parse_yaml
from unbraid.schema import SWEEP, check_fields


@dataclass(frozen=True)
class SweepPlan:
    """The values of every setting, including `recipe`, `data` and `refines`, and the metrics to measure.

    A setting with several values is an axis; every combination of values is a member.
    """

    values: Mapping[str, Sequence[Any]]
    metrics: Sequence[str]

    @property
    def axes(self) -> dict[str, list[Any]]:
        return {key: list(values) for key, values in self.values.items() if len(values) > 1}

    @property
    def fixed(self) -> dict[str, Any]:
        return {key: values[0] for key, values in self.values.items() if len(values) == 1}

    @property
    def name(self) -> str:
        """The recipes, and a hash of the fixed settings and the names of the axes: longer axes extend a sweep."""
        canonical = json.dumps([to_plain(self.fixed), sorted(self.axes)], sort_keys=True, default=str)
        return "-".join([*self.values["recipe"], hashlib.sha256(canonical.encode()).hexdigest()[:8]])

    def extend(self, stored: "SweepPlan", where: Path) -> "SweepPlan":
        """Return this plan joined with an earlier one in the same folder; only axes may grow."""
        for key in {**stored.values, **self.values}:
            old, new = list(stored.values.get(key, ())), list(self.values.get(key, ()))
            if not old or not new or (len(old) == 1 and to_plain(old[0]) not in to_plain(new)):
                found = f"{key}={old[0]}" if len(old) == 1 else f"an axis {key}" if old else f"no setting '{key}'"
                raise UsageError(f"{where} holds a sweep with {found}; add to its axes, or choose another name.")
        values = {key: _union(stored.values[key], self.values[key]) for key in self.values}
        return SweepPlan(values, self.metrics)

    def to_yaml(self) -> str:
        parts = {"format": FORMAT, "axes": self.axes, "fixed": self.fixed, "metrics": list(self.metrics)}
        return yaml.safe_dump(
            add_sum(to_plain(parts)), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
        )

    @classmethod
    def from_yaml(cls, text: str, where: str = "sweep.yaml") -> "SweepPlan":
        stored = parse_yaml(text)
        check_fields(stored, SWEEP, where)
        stored = check_sum(stored)
        values = {**{key: [value] for key, value in stored["fixed"].items()}, **stored["axes"]}
        return cls(values, stored["metrics"])


def to_canonical(value: Any) -> str:
    """Return a text that is the same for equal values."""
    return json.dumps(to_plain(value), sort_keys=True, default=str)


def _union(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Return the values of both without repetition, numbers in order of size."""
    joined = list(to_plain(tuple(first)))
    joined += [value for value in to_plain(tuple(second)) if value not in joined]
    return sorted(joined) if all(isinstance(value, (int, float)) for value in joined) else joined
