"""One registry for objectives, networks, data sets, metrics and experiments.

An entry is one decorated function. Its keyword-only arguments are its settings, with the types and defaults that
its signature states; nothing else has to be written for it to be listed, configured, checked and saved.
"""

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


@dataclass(frozen=True)
class Facts:
    """What a decorator may state about an entry; each kind of entry extends it with its own fields.

    `later` names settings that were added after runs had been stored. They are left out of a config where they have
    their default, so that the ids of older runs stay the same.
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
        """First line of the docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """Settings that a config may hold, by name."""
        return read_settings(self.make)

    @property
    def sweepable(self) -> frozenset[str]:
        """Settings annotated `Weight`: numbers that may differ between the members of one program."""
        return frozenset(name for name, p in self.settings.items() if is_weight(p.annotation))

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of this entry: the given ones checked, the others by default."""
        settings, resolved = self.settings, {}
        for key in given:
            if key not in settings:
                raise unknown("setting", key, settings, of=f"'{self.name}'")
        for key, parameter in settings.items():
            if key in given:
                resolved[key] = coerce(f"{self.name}.{key}", given[key], parameter.annotation)
            elif parameter.default is parameter.empty:
                raise UsageError(f"'{self.name}' needs {key}=…, which has no default.")
            else:
                resolved[key] = parameter.default
        later = self.facts.later
        return {key: value for key, value in resolved.items() if key not in later or value != settings[key].default}


def read_settings(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only arguments of a function or class, by name.

    A class whose `__init__` has `**settings` takes those of its base class as well, which come first.
    """
    if not isinstance(make, type):
        return _keyword_only(make)
    found: list[dict[str, inspect.Parameter]] = []
    for base in make.__mro__:
        if "__init__" in vars(base):
            found.append(_keyword_only(base.__init__))
            if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(base.__init__).parameters.values()):
                break
    return {name: parameter for each in reversed(found) for name, parameter in each.items()}


def _keyword_only(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


class Registry(Generic[Made, FactsT]):
    """Map names to entries. Calling the registry with a name gives the decorator that registers a function.

    `facts` is the dataclass that holds what the decorator's other keywords state, `entry` the class of the entries.

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
        """Return the decorator that registers a function under `name`."""
        known = [item.name for item in fields(self.facts)]
        for key in facts:
            if key not in known:
                raise unknown("fact", key, known, of=f"a {self.kind}")

        def register(make: Made) -> Made:
            if name in self._entries and not _same_source(self._entries[name].make, make):
                raise UsageError(f"There is already a {self.kind} named '{name}'.")
            self._entries[name] = self.entry(name, make, self.facts(**facts), year, reference)
            return make

        return register

    def __getitem__(self, name: str) -> Entry[Made, FactsT]:
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def remove(self, name: str) -> None:
        """Forget an entry (examples and tests clean up after themselves)."""
        self._entries.pop(self[name].name)


def _same_source(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether two functions are one piece of source, loaded twice (a reloaded module or notebook cell)."""
    return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)


def coerce(name: str, value: Any, annotation: Any) -> Any:
    """`value` as `annotation` asks, or a `UsageError` that says what was expected.

    Command-line values arrive already parsed, so this widens (int to float), takes a word back that looked like a
    number or like none where a word is wanted, checks, and never guesses.
    """
    if annotation is inspect.Parameter.empty or annotation is Any:
        return value
    allowed = _alternatives(annotation)
    for candidate in (value, *_as_typed(value)):
        for kind in allowed:
            fits, result = _fit(name, candidate, kind)
            if fits:
                return result
    wanted = " or ".join(_describe(kind) for kind in allowed)
    raise SettingError(f"{name} must be {wanted}, not {value!r}.")


def is_weight(annotation: Any) -> bool:
    """Whether an annotation is `unbraid.types.Weight`, told by its mark so that this module needs no torch."""
    return "sweepable" in getattr(annotation, "__metadata__", ())


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if is_weight(annotation):
        return (float,)  # one member's own number; only a stack of members makes it a tensor
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
    """Numbers of any library, but no NaN: nothing can be compared with it, or trained."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or value != value:
        return False, None
    if kind is float:
        return True, float(value)
    if isinstance(value, numbers.Integral):
        return True, operator.index(value)
    return float(value).is_integer(), int(float(value)) if float(value).is_integer() else None


def _as_typed(value: Any) -> tuple[str, ...]:
    """What may have been typed for a value that was read as something else: the words none and 2024."""
    if value is None:
        return ("none",)
    return (str(value),) if isinstance(value, int) and not isinstance(value, bool) else ()


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
