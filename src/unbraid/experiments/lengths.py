"""Other lengths of training: runs of half or twice the steps, which show whether an experiment had settled."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from unbraid.errors import unknown


@dataclass(frozen=True)
class Length:
    """A multiple of an experiment's steps."""

    name: str
    factor: Fraction
    words: str

    @property
    def runs(self) -> str:
        """Name of the file of scores."""
        return f"{self.name}.csv"

    @property
    def record(self) -> str:
        """Name of the file that says where the scores come from."""
        return f"{self.name}.json"

    def multiply(self, steps: Any) -> Any:
        """Return a number of steps at this length, at least 1 where there were any; of a list, of each."""
        if isinstance(steps, (list, range)):
            return [self.multiply(each) for each in steps]
        return max(int(steps * self.factor), min(steps, 1))


HALF = Length("half", Fraction(1, 2), "half the steps")
TWICE = Length("twice", Fraction(2), "twice the steps")
LENGTHS = {length.name: length for length in (HALF, TWICE)}


def get_length(name: str | None) -> Length | None:
    """Return the length of this name; None for that of the experiment itself."""
    if name is None:
        return None
    if name not in LENGTHS:
        raise unknown("length", name, list(LENGTHS))
    return LENGTHS[name]
