r"""The example of msvae2020's appendix K as a process with exact probabilities.

C is uniform on 1, 2, 3 and gives a picture Y. Z is a fair coin. Given Z a mask is drawn uniformly from those of Z, and
X is Y with the mask added. Pictures and masks are sets of pixels, and adding is union:

    P(C = c, Z = z, Y = y_c, X = x) = 1/3 · 1/2 · |{masks m of z: y_c + m = x}| / |masks of z|

The text has no figure 36, so the pictures are unknown. Tables 2 and 3 follow from a few of their properties: with three
pixels a, b, c as the Y of 1, 2, 3, and {a, b} as image 4, there are 1568 ways to choose three masks for Z = 0 and two
for Z = 1, and 60 of them give table 2.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

PixelSet = frozenset[str]
Joint = dict[tuple[int, int], Fraction]
"""P(C, Z) by values."""

CODES, COINS = (1, 2, 3), (0, 1)
PIXELS: Sequence[str] = "abc"


class Process(NamedTuple):
    """Masks of Z = 0 and of Z = 1, and the images of the tables, the first three of which are the values of Y."""

    tails: tuple[PixelSet, ...]
    heads: tuple[PixelSet, ...]
    images: tuple[PixelSet, ...] = tuple(map(frozenset, ("a", "b", "c", "ab")))

    def posterior(self, x: int, y: int | None = None) -> Joint:
        """Return P(C, Z | X = x), or P(C, Z | X = x, Y = y), by enumeration; images count from 1."""
        joint = {}
        for c in CODES:
            for z, masks in zip(COINS, (self.tails, self.heads), strict=True):
                fitting = sum(self.images[c - 1] | mask == self.images[x - 1] for mask in masks)
                possible = y is None or self.images[y - 1] == self.images[c - 1]
                joint[c, z] = Fraction(fitting * possible, len(masks) * len(CODES) * len(COINS))
        total = sum(joint.values())
        return {at: share / total for at, share in joint.items()} if total else joint


def smallest_process(order: Sequence[str] = PIXELS) -> Process:
    """Return the smallest masks with table 2: {}, a and c for Z = 0; a and b for Z = 1; `order` renames a, b, c."""
    plain = Process((frozenset(), frozenset("a"), frozenset("c")), (frozenset("a"), frozenset("b")))
    names = dict(zip(PIXELS, order, strict=True))
    return Process(*(tuple(frozenset(names[pixel] for pixel in picture) for picture in part) for part in plain))


def list_processes() -> Iterator[Process]:
    """Yield every choice of three masks for Z = 0 and two for Z = 1 among the eight sets of pixels."""
    sets = [frozenset(chosen) for size in range(len(PIXELS) + 1) for chosen in combinations(PIXELS, size)]
    for tails in combinations(sets, 3):
        for heads in combinations(sets, 2):
            yield Process(tails, heads)


def marginals(joint: Joint) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Return P(C) and P(Z)."""
    of_code = {c: sum((joint[c, z] for z in COINS), Fraction(0)) for c in CODES}
    return of_code, {z: sum((joint[c, z] for c in CODES), Fraction(0)) for z in COINS}


def dependence(joint: Joint) -> Fraction:
    """Return the largest |P(C, Z) - P(C) P(Z)|, which is 0 if and only if C and Z are independent."""
    of_code, of_coin = marginals(joint)
    return max(abs(share - of_code[c] * of_coin[z]) for (c, z), share in joint.items())
