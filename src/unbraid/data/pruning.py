r"""Pruning by predicate: rows that a condition on their factors describes (esmaeili2018, figure 9: thick 7s).

    condition  = part | part | …            a part: comparison & comparison & …       & binds tighter than |
    comparison = FACTOR op VALUE, or (condition)        op: = != < <= > >=

A value is what the factor's own values say: a number where they are numbers (`scale>=0.8`, `digit=7`), a word where
they are words (`shape=heart`, with = and != only), and the position, counted from 0, where it has none. `#2` is always
the position: `posX<=#2` are the first three values. Names or words with signs in them may be put in quotes. A row
whose label is missing fits no comparison, not even !=.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unbraid.data.factors import Factor, FactorDataset
from unbraid.errors import UsageError, unknown

EXAMPLE = "prune:digit=7 & thickness>3"
SNAP = 1e-3
"""A number this close to a factor's value, in parts of their range, means that value: nobody types 0.0322580645."""

_COMPARE: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TOKEN = re.compile(r"""\s*(?:(?P<sign>[<>!=]=|[<>=&|()])|(?P<quoted>"[^"]*"|'[^']*')|(?P<word>[^<>!=&|()"']+|!))""")


def match_rows(dataset: FactorDataset, condition: str) -> Tensor:
    """Which rows fit a condition [rows]; one of its comparisons that no row fits at all is an error."""
    parser = _Parser(dataset, condition, _tokens(condition))
    found = parser.condition()
    if parser.tokens:
        raise parser.wrong("& or | or the end")
    return found


@dataclass
class _Parser:
    """Reads a condition from left to right, one token at a time."""

    dataset: FactorDataset
    text: str
    tokens: list[str]

    def __post_init__(self) -> None:
        self.values = self.dataset.values_of(torch.arange(len(self.dataset), device=self.dataset.device))

    def condition(self) -> Tensor:
        found = self.part()
        while self.took("|"):
            found = found | self.part()
        return found

    def part(self) -> Tensor:
        found = self.single()
        while self.took("&"):
            found = found & self.single()
        return found

    def single(self) -> Tensor:
        if self.took("("):
            found = self.condition()
            if not self.took(")"):
                raise self.wrong(")")
            return found
        name = self.word("a factor's name")
        if not self.tokens or self.tokens[0] not in _COMPARE:
            raise self.wrong("one of = != < <= > >=")
        sign = self.tokens.pop(0)
        return self.compare(name, sign, self.word("a value"))

    def compare(self, name: str, sign: str, value: str) -> Tensor:
        column = self.dataset.factor_position(name)
        factor, labels = self.dataset.factors[column], self.values[:, column]
        scale, wanted = _scale(factor, sign, value)
        fits = _COMPARE[sign](torch.from_numpy(scale), wanted).to(labels.device)
        found = fits[labels.clamp_min(0)] & (labels >= 0)
        if not bool(found.any()):
            raise UsageError(f"No row of {self.dataset.name} has {name}{sign}{value}; {_range(factor)}.")
        return found

    def took(self, sign: str) -> bool:
        if not self.tokens or self.tokens[0] != sign:
            return False
        self.tokens.pop(0)
        return True

    def word(self, what: str) -> str:
        if not self.tokens or self.tokens[0] in (*_COMPARE, "&", "|", "(", ")"):
            raise self.wrong(what)
        found = self.tokens.pop(0)
        return found[1:-1] if found[0] in "\"'" else found

    def wrong(self, expected: str) -> UsageError:
        place = f"at '{' '.join(self.tokens)}'" if self.tokens else "at its end"
        return UsageError(f"split=prune:{self.text} needs {expected} {place}; an example is {EXAMPLE}.")


def _tokens(text: str) -> list[str]:
    tokens, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise UsageError(f"split=prune:{text} cannot be read from '{text[place:].strip()}' on; is a quote missing?")
        tokens.append(match[0].strip())
        place = match.end()
    return [token for token in tokens if token]


def _scale(factor: Factor, sign: str, value: str) -> tuple[np.ndarray, float]:
    """The factor's values as numbers [size], and the value to compare them with."""
    positions, ordered = np.arange(factor.size, dtype=np.float64), sign not in ("=", "==", "!=")
    if re.fullmatch(r"#\d+", value):
        if int(value[1:]) >= factor.size:
            raise UsageError(f"{factor.name} has no position {value}; it has {factor.size} values, from #0.")
        return positions, float(value[1:])
    numbers = _numbers(factor)
    if numbers is None:
        words = [str(word) for word in factor.values or ()]
        if ordered:
            raise UsageError(f"{factor.name} has words for values, without an order: use = or !=, or a position as #2.")
        if value not in words:
            raise unknown("value", value, words, of=factor.name)
        return positions, float(words.index(value))
    try:
        wanted = float(value)
    except ValueError:
        raise UsageError(f"'{value}' is not a number; {_range(factor)}.") from None
    nearest = numbers[np.abs(numbers - wanted).argmin()]
    if abs(nearest - wanted) <= SNAP * np.ptp(numbers):
        return numbers, float(nearest)
    return numbers, wanted


def _numbers(factor: Factor) -> np.ndarray | None:
    """A factor's values as numbers, the positions where it has none; None for words."""
    try:
        return np.array([float(value) for value in factor.values or range(factor.size)])
    except ValueError:
        return None


def _range(factor: Factor) -> str:
    numbers = _numbers(factor)
    if numbers is None:
        return f"the values of {factor.name} are {', '.join(map(str, factor.values or ()))}"
    kind = "positions" if factor.values is None else "values"
    return f"{factor.name} has {factor.size} {kind} from {numbers.min():g} to {numbers.max():g}"
