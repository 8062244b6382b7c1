r"""Pruning by a condition on factors (esmaeili2018, figure 9: thick 7s).

    condition  = part | part | …            a part: comparison & comparison & …       & binds tighter than |
    comparison = FACTOR op VALUE, or (condition)        op: = != < <= > >=

A value is a number if the factor's values are numbers (`scale>=0.8`, `digit=7`), a word if they are words
(`shape=heart`, with = and != only), and the position, counted from 0, if it has no values. `#2` is always the position:
`posX<=#2` are the first three values. Quote names or words with signs in them. A row whose label is missing fits no
comparison, not even !=.
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
SNAP_DISTANCE = 1e-3
"""A number this close to a factor's value, in parts of their range, means that value: nobody types 0.0322580645."""

_COMPARISONS: dict[str, Callable[[Tensor, Tensor | float], Tensor]] = {
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
    """Return which rows fit a condition [rows]; a comparison that no row fits raises a `UsageError`."""
    parser = _Parser(dataset, condition, _split_tokens(condition))
    rows = parser.parse_condition()
    if parser.tokens:
        raise parser.error("& or | or the end")
    return rows


@dataclass
class _Parser:
    """A recursive-descent parser; every method consumes the tokens that it understands and returns matching rows."""

    dataset: FactorDataset
    text: str
    tokens: list[str]

    def __post_init__(self) -> None:
        self.values = self.dataset.values_of(torch.arange(len(self.dataset), device=self.dataset.device))

    def parse_condition(self) -> Tensor:
        rows = self.parse_part()
        while self.take("|"):
            rows = rows | self.parse_part()
        return rows

    def parse_part(self) -> Tensor:
        rows = self.parse_comparison()
        while self.take("&"):
            rows = rows & self.parse_comparison()
        return rows

    def parse_comparison(self) -> Tensor:
        if self.take("("):
            rows = self.parse_condition()
            if not self.take(")"):
                raise self.error(")")
            return rows
        name = self.take_word("a factor's name")
        if not self.tokens or self.tokens[0] not in _COMPARISONS:
            raise self.error("one of = != < <= > >=")
        sign = self.tokens.pop(0)
        return self.compare(name, sign, self.take_word("a value"))

    def compare(self, name: str, sign: str, value: str) -> Tensor:
        column = self.dataset.factor_position(name)
        factor, labels = self.dataset.factors[column], self.values[:, column]
        values, wanted = _parse_value(factor, sign, value)
        fits = _COMPARISONS[sign](torch.from_numpy(values), wanted).to(labels.device)
        rows = fits[labels.clamp_min(0)] & (labels >= 0)
        if not bool(rows.any()):
            raise UsageError(f"No row of {self.dataset.name} has {name}{sign}{value}; {_describe_values(factor)}.")
        return rows

    def take(self, sign: str) -> bool:
        if not self.tokens or self.tokens[0] != sign:
            return False
        self.tokens.pop(0)
        return True

    def take_word(self, expected: str) -> str:
        if not self.tokens or self.tokens[0] in (*_COMPARISONS, "&", "|", "(", ")"):
            raise self.error(expected)
        word = self.tokens.pop(0)
        return word[1:-1] if word[0] in "\"'" else word

    def error(self, expected: str) -> UsageError:
        place = f"at '{' '.join(self.tokens)}'" if self.tokens else "at its end"
        return UsageError(f"split=prune:{self.text} needs {expected} {place}; an example is {EXAMPLE}.")


def _split_tokens(text: str) -> list[str]:
    tokens, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise UsageError(f"split=prune:{text} cannot be read from '{text[place:].strip()}' on; is a quote missing?")
        tokens.append(match[0].strip())
        place = match.end()
    return [token for token in tokens if token]


def _parse_value(factor: Factor, sign: str, value: str) -> tuple[np.ndarray, float]:
    """Return the factor's values as numbers [size], and the number to compare them with."""
    positions, ordered = np.arange(factor.size, dtype=np.float64), sign not in ("=", "==", "!=")
    if re.fullmatch(r"#\d+", value):
        if int(value[1:]) >= factor.size:
            raise UsageError(f"{factor.name} has no position {value}; it has {factor.size} values, from #0.")
        return positions, float(value[1:])
    numbers = _find_numbers(factor)
    if numbers is None:
        words = [str(word) for word in factor.values or ()]
        if ordered:
            raise UsageError(
                f"{factor.name} has words for values, without an order: use = or !=, or a position such as #2."
            )
        if value not in words:
            raise unknown("value", value, words, of=factor.name)
        return positions, float(words.index(value))
    try:
        wanted = float(value)
    except ValueError:
        raise UsageError(f"'{value}' is not a number; {_describe_values(factor)}.") from None
    nearest = numbers[np.abs(numbers - wanted).argmin()]
    if abs(nearest - wanted) <= SNAP_DISTANCE * np.ptp(numbers):
        return numbers, float(nearest)
    return numbers, wanted


def _find_numbers(factor: Factor) -> np.ndarray | None:
    """Return a factor's values as numbers, or positions if it has no values; None for words."""
    try:
        return np.array([float(value) for value in factor.values or range(factor.size)])
    except ValueError:
        return None


def _describe_values(factor: Factor) -> str:
    numbers = _find_numbers(factor)
    if numbers is None:
        return f"the values of {factor.name} are {', '.join(map(str, factor.values or ()))}"
    kind = "positions" if factor.values is None else "values"
    return f"{factor.name} has {factor.size} {kind} from {numbers.min():g} to {numbers.max():g}"
