"""The config of a run: frozen settings, YAML, `key=value` overrides, axes, and an id that is equal on all machines."""

import dataclasses
import hashlib
import itertools
import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import yaml

from unbraid.errors import UsageError, unknown
from unbraid.plain_text import FastSafeDumper, parse_yaml
from unbraid.printable import shorten
from unbraid.registry import coerce
from unbraid.schema import FORMAT as FORMAT

OPTIONAL = ("groups", "prior", "parent")
"""Sections that are stored only if they are set, so that the ids of older configs stay the same."""

NAMES = ("network", "encoder", "decoder", "likelihood", "prior")
"""Settings whose value is a registered name, or a module of the user's."""

MODEL_SETTINGS = ("z", "latents", "groups", "prior", "network", "encoder", "decoder", "likelihood")
"""Settings of a model that every recipe has, beside its own and those of `Training`."""

LATER = ("patience",)
"""Settings of training that are stored only if they are set, for the same reason."""

MAX_RANGE_VALUES = 1_000_000
"""A longer range is taken for a typing error."""

MAX_DIGITS = 300
"""A whole number with more digits is taken for a typing error; no float is as large."""

MAX_DEPTH = 16
"""Lists in lists in lists … beyond this depth are taken for a typing error."""

MAX_STEPS = 10**12
"""More steps are taken for a typing error: they would take months at a microsecond each."""


@dataclass(frozen=True)
class Choice:
    """A registered name with its settings."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the name and the settings as one mapping."""
        return {"name": self.name, **self.settings}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Choice":
        return cls(stored["name"], {k: _lists_to_tuples(v) for k, v in stored.items() if k != "name"})


@dataclass(frozen=True)
class Training:
    """The settings of training. Every one changes the result; device and speed are not part of a config."""

    steps: int = 20_000
    batch: int = 256
    lr: float = 1e-3
    decay: Literal["none", "linear", "cosine"] = "none"
    seed: int = 0
    clip: float | None = None
    precision: Literal["f32", "tf32", "bf16", "f64"] = "f32"
    split: str | float = "default"
    patience: int | None = None
    """Measurements of the held-out loss without improvement before training ends (`training/early_stopping.py`)."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "patience"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}.")
            if (getattr(self, name) or 0) > MAX_STEPS:
                raise UsageError(f"{name} must be at most {MAX_STEPS:,}, not {getattr(self, name):.3g}.")
        if not 0 <= self.seed < 2**62:
            raise UsageError(f"seed must be a whole number from 0 to 2^62, not {shorten(self.seed)}.")
        if not 0 < self.lr < math.inf:
            raise UsageError(f"lr must be above 0 and finite, not {self.lr}.")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"clip must be above 0 (or none), not {self.clip}.")

    @classmethod
    def fields(cls) -> dict[str, Any]:
        """Return the types of the settings by name."""
        return typing.get_type_hints(cls)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings; those of `LATER` only if they are set."""
        stored = dataclasses.asdict(self)
        return {key: value for key, value in stored.items() if key not in LATER or value is not None}

    @classmethod
    def from_settings(cls, given: Mapping[str, Any]) -> "Training":
        """Return a `Training` of settings whose names and types are checked."""
        fields = cls.fields()
        for key in given:
            if key not in fields:
                raise unknown("training setting", key, fields)
        return cls(**{key: coerce(key, value, fields[key]) for key, value in given.items()})


@dataclass(frozen=True)
class Config:
    """Everything that determines a run's result."""

    objective: Choice
    model: str
    data: Choice
    encoder: Choice
    decoder: Choice
    likelihood: Choice
    latents: Mapping[str, Mapping[str, Any]]
    training: Training
    groups: Any = None
    """Groups of latent variables for the hierarchical decomposition."""
    prior: Choice | None = None
    """A learned prior; None is the standard one."""
    parent: Mapping[str, Any] | None = None
    """The run that this one refines: its id `run`, the hash `content` of its files, and its whole `config`."""

    def as_dict(self) -> dict[str, Any]:
        """Return the nested mapping that config.yaml stores."""
        stored: dict[str, Any] = {"format": FORMAT}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name in OPTIONAL and value is None:
                continue
            if isinstance(value, Choice | Training):
                value = value.as_dict()
            stored[item.name] = to_plain(value)
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Config":
        if stored.get("format") != FORMAT:
            raise UsageError(f"This config has format {stored.get('format')}, but this version reads format {FORMAT}.")
        fields = {item.name: item.type for item in dataclasses.fields(cls)}
        for key in stored:
            if key != "format" and key not in fields:
                raise unknown("config section", key, fields)
        missing = [key for key in fields if key not in stored and key not in OPTIONAL]
        if missing:
            raise UsageError(f"This config lacks {', '.join(missing)}.")
        parts: dict[str, Any] = {key: stored[key] for key in fields if key in stored}
        for key, kind in fields.items():
            if kind is Choice or (key == "prior" and key in parts):
                parts[key] = Choice.from_dict(stored[key])
        parts["training"] = Training.from_settings(stored["training"])
        return cls(**parts)

    def to_yaml(self) -> str:
        return yaml.dump(self.as_dict(), Dumper=FastSafeDumper, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text: str) -> "Config":
        stored = parse_yaml(text)
        if not isinstance(stored, Mapping):
            raise UsageError("A config must be a YAML mapping.")
        return cls.from_dict(stored)

    @property
    def run_id(self) -> str:
        """A readable name and a hash of every setting."""
        return f"{self.objective.name}-{self.data.name}-s{self.training.seed}-{hash_settings(self.as_dict())}"


def hash_settings(stored: Mapping[str, Any]) -> str:
    """Return the last part of a run id: a hash of the mapping that config.yaml stores."""
    canonical = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def list_changes(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return a phrase for each setting in which two configs differ."""
    changes: list[str] = []
    for key in dict.fromkeys([*stored, *wanted]):
        old, new = stored.get(key), wanted.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += list_changes(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key} is {old} there and {new} here")
    return changes


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Return `{"beta": 6, "data.size": 32}` for `["beta=6", "data.size=32"]`."""
    return {key: parse_value(text) for key, text in _split_arguments(arguments)}


def parse_pairs(text: str) -> dict[str, Any]:
    """Return `{"beta": 1, "lr": 0.005}` for `beta=1,lr=5e-3`; a comma before anything but `key=` is part of a value."""
    pairs: list[str] = []
    for part in _split_outside_brackets(text, text):
        if pairs and not re.match(r"[A-Za-z][\w.-]*=", part):
            pairs[-1] += f",{part}"
        else:
            pairs.append(part)
    return parse_overrides(pairs)


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise if a setting that names a part of a model has another value than a word."""
    for key in NAMES:
        value = settings.get(key)
        if not (value is None or isinstance(value, str) or hasattr(value, "state_dict")):
            raise UsageError(f"{key}={shorten(settings[key])} is not a name; unbraid list networks shows names.")


def parse_axes(arguments: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of each setting in `["beta=1,2,4", "seed=0:50", "z=10"]`, in the order of writing.

    A range is start:stop or start:stop:step in whole numbers, without stop. Brackets enclose one value:
    `encoder.hidden=[16,16],[32,32]` has two. `split` is always one value, which may contain commas.
    """
    pairs = _split_arguments(arguments)
    return {key: [parse_value(text)] if key == "split" else _parse_axis(key, text) for key, text in pairs}


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of one value of each axis; the last axis changes fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _split_arguments(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield key and text of each `key=value`."""
    seen: set[str] = set()
    for argument in arguments:
        key, equals, text = (part.strip() for part in argument.partition("="))
        if not equals or not key:
            word = shorten(argument)
            raise UsageError(f"'{word}' is not of the form key=value (for example beta=6, or data={word}).")
        if key in seen:
            raise UsageError(f"'{shorten(key)}' is given twice.")
        seen.add(key)
        yield key, text


def _parse_axis(key: str, text: str) -> list[Any]:
    values: list[Any] = []
    for part in _split_outside_brackets(text, f"{key}={text}"):
        if not part:
            raise UsageError(f"{key}={text} has an empty value; write {key}=1,2,4 or a range such as {key}=0:10.")
        values += _parse_range(key, part) or [parse_value(part)]
    seen: set[Any] = set()
    for value in values:
        if (type(value) is bool, value) in seen:  # in Python, True == 1
            raise UsageError(f"{key}={text} has {value} twice.")
        seen.add((type(value) is bool, value))
    return values


def _split_outside_brackets(text: str, argument: str) -> list[str]:
    """Return the parts between commas that are not inside brackets; an error quotes `argument`."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if depth < 0:
            break
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if depth != 0:
        raise UsageError(f"{shorten(argument)} has a bracket without its partner.")
    return [part.strip() for part in parts]


def _parse_range(key: str, text: str) -> range | None:
    """Return the range that `0:50` or `0:50:10` writes, or None if the text is not a range."""
    parts = [parse_value(part.strip()) for part in text.split(":")]
    if len(parts) not in (2, 3) or not all(isinstance(part, (int, float)) for part in parts):
        return None
    if not all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
        raise UsageError(f"{key}={text}: a range needs whole numbers; list other values, as {key}=0.5,1,2.")
    if parts[2:] == [0]:
        raise UsageError(f"{key}={text}: the step of a range cannot be 0.")
    values = range(*parts)
    if not values:
        raise UsageError(f"{key}={text} holds no value: a range starts at its first number and ends before its second.")
    if len(values) > MAX_RANGE_VALUES:
        raise UsageError(f"{key}={text} holds {len(values):,} values, more than {MAX_RANGE_VALUES:,}.")
    return values


def parse_value(text: str, depth: int = 0) -> Any:
    """Return a number, true, false, none, a [list] or a word. Unlike YAML 1.1, `1e-3` is a number and `no` a word."""
    if re.fullmatch(r"[+-]?\d[\d_]*", text):
        if len(text) > MAX_DIGITS:
            raise UsageError(f"{shorten(text)} has {len(text):,} digits; a number has at most {MAX_DIGITS}.")
        try:
            return int(text)
        except ValueError:  # underscores that do not stand between digits
            return text
    try:
        return float(text)
    except ValueError:
        pass
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("[") and text.endswith("]"):
        if depth == MAX_DEPTH:
            raise UsageError(f"{shorten(text)} is a list in more than {MAX_DEPTH} others; nothing takes such a value.")
        inside = text[1:-1].strip()
        return tuple(parse_value(part, depth + 1) for part in _split_outside_brackets(inside, text)) if inside else ()
    return text


def to_plain(value: Any) -> Any:
    """Return a value as JSON and YAML hold it: lists for tuples, text for paths, numbers for scalars of numpy."""
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)  # words of numpy and of enums become plain ones
    return value.item() if hasattr(value, "item") else value


def _lists_to_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _lists_to_tuples(v) for k, v in value.items()}
    return tuple(_lists_to_tuples(v) for v in value) if isinstance(value, list) else value
