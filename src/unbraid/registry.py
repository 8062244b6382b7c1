"""One registry for objectives, networks, data sets, metrics and experiments.

An entry is one decorated function. Its keyword-only arguments are its settings, with the types and defaults that
its signature states; nothing else has to be written for it to be listed, configured, checked and saved.
"""

import functools
import inspect
import numbers
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from unbraid.errors import SettingError, UsageError, unknown
from unbraid.plugins import load_installed
from unbraid.printable import shorten

MANY = 2**62
"""A limit of whole numbers that no count reaches, so messages leave it out."""


@dataclass(frozen=True)
class Facts:
    """Facts that a decorator states about an entry; each kind of entry adds its own fields.

    `later` names settings that were added after runs had been stored. A config omits them if they have their default,
    so that the ids of older runs stay the same.
    """

    later: tuple[str, ...] = ()


Made = TypeVar("Made", bound=Callable[..., Any])
FactsT = TypeVar("FactsT", bound=Facts)


@dataclass(frozen=True)
class Entry(Generic[Made, FactsT]):
    """A registered function with its facts; the year is that of the reference, unless it is given."""

    name: str
    make: Made
    facts: FactsT
    year: int | None = None
    reference: str = ""

    def __post_init__(self) -> None:
        if self.year is None and (found := re.search(r"\d{4}", self.reference)):
            object.__setattr__(self, "year", int(found[0]))

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        return read_settings(self.make)

    @property
    def sweepable(self) -> frozenset[str]:
        """The settings annotated `Weight`, which may differ between the members of a group."""
        return frozenset(name for name, p in self.settings.items() if is_weight(p.annotation))

    def resolve(self, given: Mapping[str, Any], section: str = "") -> dict[str, Any]:
        """Return all settings of this entry: the given ones, checked, and defaults for the others.

        Errors write a setting as users do, with its `section` (`data.`) before it.
        """
        settings, resolved = self.settings, {}
        for key in given:
            if key not in settings:
                raise unknown("setting", key, settings, of=f"'{self.name}'")
        for key, parameter in settings.items():
            if key in given:
                resolved[key] = coerce(f"{self.name}.{key}", given[key], parameter.annotation)
            elif parameter.default is parameter.empty:
                raise UsageError(f"'{self.name}' needs {section}{key}=…, which has no default.")
            else:
                resolved[key] = parameter.default
        later = self.facts.later
        return {key: value for key, value in resolved.items() if key not in later or value != settings[key].default}


def read_settings(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only arguments of a function or class, by name.

    If the `__init__` of a class has `**settings`, those of its base class come first.
    """
    if not isinstance(make, type):
        return dict(_keyword_only(make))
    found: list[Mapping[str, inspect.Parameter]] = []
    for base in make.__mro__:
        if "__init__" in vars(base):
            found.append(_keyword_only(base.__init__))
            if not _passes_on(base.__init__):
                break
    return {name: parameter for each in reversed(found) for name, parameter in each.items()}


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise a `UsageError` for the first option that is not a keyword argument of a function."""
    for key in options:
        if key not in (known := _keyword_only(function)):
            raise unknown("option", key, known)


@functools.cache  # a sweep asks for the settings of its recipes thousands of times
def _keyword_only(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


@functools.cache
def _passes_on(function: Callable[..., Any]) -> bool:
    """Return whether a function takes any keyword, as a constructor that hands settings to its base class does."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


class Registry(Generic[Made, FactsT]):
    """A mapping from names to entries. `registry(name)` is the decorator that registers a function.

    `facts` is the dataclass of the decorator's other keywords, `entry` the class of the entries.

    >>> network = Registry("network")
    >>> @network("linear", year=2026, reference="this page")
    ... def linear(shape, *, bias: bool = True): ...
    """

    def __init__(
        self,
        kind: str,
        facts: type[FactsT] = Facts,  # type: ignore[assignment]
        entry: type[Entry[Made, FactsT]] = Entry,
    ) -> None:
        self.kind, self.facts, self.entry = kind, facts, entry
        self._entries: dict[str, Entry[Made, FactsT]] = {}

    def __call__(
        self, name: str, *, year: int | None = None, reference: str = "", **facts: Any
    ) -> Callable[[Made], Made]:
        """Return the decorator that registers a function under `name`; the year may be that of the reference."""
        known = [item.name for item in fields(self.facts)]
        for key in facts:
            if key not in known:
                raise unknown("fact", key, known, of=f"a {self.kind}")

        def register(make: Made) -> Made:
            known = self._entries[name].make if name in self._entries else make
            # a reloaded module or notebook cell may register the same source again
            if (known.__module__, known.__qualname__) != (make.__module__, make.__qualname__):
                raise UsageError(f"There is already a {self.kind} named '{name}'.")
            self._entries[name] = self.entry(name, make, self.facts(**facts), year, reference)
            return make

        return register

    def __getitem__(self, name: str) -> Entry[Made, FactsT]:
        if name not in self:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._entries:
            load_installed()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_installed()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def remove(self, name: str) -> None:
        """Remove an entry, as examples and tests do afterwards."""
        self._entries.pop(self[name].name)


def check_count(name: str, value: Any, least: int = 1, most: int = MANY) -> int:
    """Return a whole number from `least` to `most`, or raise a `SettingError`."""
    count = coerce(name, value, int)
    if not least <= count <= most:
        open_ended = "of 64 bits" if least <= -MANY else f"of at least {least}"
        limits = open_ended if most >= MANY else f"from {least} to {most:,}"
        raise SettingError(f"{name} must be a whole number {limits}, not {_show(value)}.")
    return count


def coerce(name: str, value: Any, annotation: Any) -> Any:
    """Return `value` in the type of an annotation, or raise a `SettingError`.

    Values of the command line are already parsed. An int becomes a float, and a number or None becomes the word that
    was typed, if the annotation asks for that. YAML leaves 1e-3 as text, which becomes a number where one is expected.
    """
    if annotation is inspect.Parameter.empty or annotation is Any:
        return value
    allowed = _alternatives(annotation)
    for candidate in (*_typed_numbers(value), value, *_typed_words(value)):
        for kind in allowed:
            fits, result = _fit(name, candidate, kind)
            if fits:
                return result
    wanted = " or ".join(_describe(kind) for kind in allowed)
    several = isinstance(value, (list, range)) or (isinstance(value, str) and "," in value)
    hint = " Several values are for a sweep (`unbraid sweep`)." if several else ""
    raise SettingError(f"{name} must be {wanted}, not {_show(value)}.{hint}")


def _show(value: Any) -> str:
    try:
        return shorten(repr(value))
    except Exception:  # an object of the user's that fails at this, or a number with thousands of digits
        return f"a {type(value).__name__}"


def is_weight(annotation: Any) -> bool:
    """Return whether an annotation is `unbraid.types.Weight`, by its mark: importing it would import torch."""
    return "sweepable" in getattr(annotation, "__metadata__", ())


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if is_weight(annotation):
        return (float,)  # a config holds one member's number; only a group stacks them
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _fit(name: str, value: Any, kind: Any) -> tuple[bool, Any]:
    origin = typing.get_origin(kind)
    if kind is type(None):
        return value is None, None
    if origin is typing.Literal:
        return value in typing.get_args(kind), value
    if origin is tuple and isinstance(value, (list, tuple)):
        return True, _coerce_tuple(name, tuple(value), typing.get_args(kind))
    if kind in (int, float):
        return _fit_number(value, kind)
    plain = origin or kind
    return isinstance(plain, type) and isinstance(value, plain), value


def _fit_number(value: Any, kind: type) -> tuple[bool, Any]:
    """Accept numbers of any library except NaN."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or value != value:
        return False, None
    try:
        if kind is float:
            return True, float(value)
        if isinstance(value, numbers.Integral):
            return True, operator.index(value)
    except OverflowError:  # a whole number beyond the largest float
        return False, None
    return float(value).is_integer(), int(float(value)) if float(value).is_integer() else None


def _typed_words(value: Any) -> tuple[str, ...]:
    """Return the words that parsing turned into None or an int, such as none and 2024."""
    if value is None:
        return ("none",)
    return (str(value),) if isinstance(value, int) and not isinstance(value, bool) else ()


def _typed_numbers(value: Any) -> tuple[float, ...]:
    """Return the number that a text such as 1e-3 or 2.5E3 writes; YAML 1.1 wants a point and a sign (1.0e-3)."""
    written = isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", value, re.ASCII)
    return (float(value),) if written else ()


def describe_type(annotation: Any) -> str:
    """Return what a setting with this annotation takes, in words."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return "anything"
    return " or ".join(_describe(kind) for kind in _alternatives(annotation))


def _coerce_tuple(name: str, values: tuple[Any, ...], kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(values)
    if kinds and len(kinds) != len(values):
        raise SettingError(f"{name} must have {len(kinds)} entries, not {len(values)}.")
    return tuple(coerce(f"{name}[{i}]", v, k) for i, (v, k) in enumerate(zip(values, kinds, strict=True)))


def _describe(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list such as [a,b]"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return words.get(kind, str(getattr(kind, "__name__", kind)))
