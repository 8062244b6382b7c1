"""Dependence of C and Z given X, and independence given X and Y: msvae2020's tables 2 and 3."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.evidence import Finding, find_extreme, find_largest
from unbraid.experiments.results import Results
from unbraid.metrics import Score
from unbraid.papers.msvae2020 import masks
from unbraid.papers.msvae2020.masks import CODES, COINS, PIXELS, Joint, Process, dependence, list_processes
from unbraid.report.svg import PALETTE, label_axes
from unbraid.report.tables import Member

ZERO: Joint = {(c, z): Fraction(0) for c in CODES for z in COINS}
GIVEN_X: Joint = ZERO | {(1, 1): Fraction(3, 8), (2, 0): Fraction(1, 4), (2, 1): Fraction(3, 8)}
"""Table 2: P(C, Z | X = 4)."""

GIVEN_BOTH: Joint = ZERO | {(1, 1): Fraction(1)}
"""Table 3: P(C, Z | X = 4, Y = 1)."""

WITNESS, ALL = "smallest masks", "all masks that give table 2"
CELLS = {at: f"cell/C{at[0]}Z{at[1]}" for at in GIVEN_X}
DEVIATION, DEPENDENCE = "separation/deviation", "separation/dependence"
EXACT = 1e-12
"""Bound on differences of floats; the fractions themselves are equal."""

SHARED: dict[str, Any] = {
    "scales": {name: Scale({"seed": range(6)}) for name in ("smoke", "small", "budget", "paper")},
    "scores": (*CELLS.values(), DEVIATION, DEPENDENCE),
}
NOTES = (
    "Probabilities are sums of fractions over all outcomes, without draws or rounding. A seed renames the pixels.",
    "deviation is the largest difference from the paper's probabilities, dependence the largest |P(C, Z) - P(C) P(Z)|.",
    "The text lacks figure 36. Pictures and masks here are sets of three pixels: Y is {a}, {b} or {c}; masks {}, {a}, "
    "{c} for Z = 0 and {a}, {b} for Z = 1; image 4 is {a, b}.",
)


def measure_given_x(settings: Mapping[str, Any]) -> list[Member]:
    """Return table 2 for the smallest masks that give it; each seed orders the pixels in another way."""
    return _measure(WITNESS, _rename(settings["seed"]), lambda process: process.posterior(4), GIVEN_X)


def measure_given_both(settings: Mapping[str, Any]) -> list[Member]:
    """Return table 3 for the smallest masks, and for all choices of masks that give table 2."""
    every = [process for process in list_processes() if process.posterior(4) == GIVEN_X]
    smallest = _measure(WITNESS, _rename(settings["seed"]), lambda process: process.posterior(4, 1), GIVEN_BOTH)
    return smallest + _measure(ALL, every, lambda process: process.posterior(4, 1), GIVEN_BOTH)


def _rename(seeds: Sequence[int]) -> list[Process]:
    orders = list(permutations(PIXELS))
    return [masks.smallest_process(orders[seed % len(orders)]) for seed in seeds]


def _measure(
    series: str, cases: Sequence[Process], posterior: Callable[[Process], Joint], paper: Joint
) -> list[Member]:
    members = []
    for seed, process in enumerate(cases):
        joint = posterior(process)
        values = {CELLS[at]: share for at, share in joint.items()}
        values[DEVIATION] = max(abs(joint[at] - paper[at]) for at in paper)
        values[DEPENDENCE] = dependence(joint)
        scores = {}
        for name, value in values.items():
            metric, protocol = name.split("/")
            scores[name] = Score(metric, protocol, float(value), len(joint), details={"fraction": str(value)})
        members.append(Member(f"{series}, {seed}", {"recipe": series, "seed": seed}, "finished", "", scores))
    return members


def is_zero(series: Sequence[str], score: str) -> Finding:
    """Return the evidence that a score is 0 for all processes of some series."""
    return find_largest(series, score, low=-EXACT, high=EXACT)


def draw_joint(results: Results, make: Any, title: str) -> Any:
    """Draw P(C, Z) next to P(C) P(Z), cell by cell."""
    scores = results.select_members(WITNESS, DEPENDENCE)[0].scores
    joint = np.array([[scores[CELLS[c, z]].value for z in COINS] for c in CODES])
    product = joint.sum(1, keepdims=True) * joint.sum(0)
    figure = make(figsize=(4.6, 2.8), layout="constrained")
    axes = figure.subplots()
    places = np.arange(joint.size)
    axes.bar(places - 0.2, joint.ravel(), 0.4, color=PALETTE[0], label=f"P(C, Z | {title})")
    axes.bar(places + 0.2, product.ravel(), 0.4, color=PALETTE[1], label=f"P(C | {title}) P(Z | {title})")
    axes.set_axisbelow(True)
    axes.set_xticks(places, [f"{c}, {z}" for c, z in CELLS])
    label_axes(axes, "C, Z", "probability")
    figure.legend(loc="outside upper left", frameon=False)
    return figure


def as_published(joint: Joint, *series: str) -> dict[str, dict[str, str]]:
    """Return the paper's fractions for the table."""
    return {name: {CELLS[at]: str(share) for at, share in joint.items()} for name in series}


experiment.add(
    "msvae2020/table2",
    "P(C, Z | X = 4) of the example of d-separation, by enumeration.",
    lambda results, make: draw_joint(results, make, "X = 4"),
    measure=measure_given_x,
    claims={
        "P(C, Z | X = 4) is that of table 2": is_zero([WITNESS], DEVIATION),
        "given X = 4, C and Z are not independent": find_extreme(
            [WITNESS], [DEPENDENCE], lambda s: s[:, 0].min(), f"smallest {DEPENDENCE}", low=EXACT
        ),
    },
    published=as_published(GIVEN_X, WITNESS),
    notes=NOTES,
    **SHARED,
)
experiment.add(
    "msvae2020/table3",
    "P(C, Z | X = 4, Y = 1) of the example of d-separation, by enumeration.",
    lambda results, make: draw_joint(results, make, "X = 4, Y = 1"),
    measure=measure_given_both,
    claims={
        "P(C, Z | X = 4, Y = 1) is that of table 3": is_zero([WITNESS, ALL], DEVIATION),
        "given X = 4 and Y = 1, C and Z are independent": is_zero([WITNESS, ALL], DEPENDENCE),
    },
    published=as_published(GIVEN_BOTH, WITNESS, ALL),
    notes=(
        *NOTES,
        "Of the 1,568 choices of three masks for Z = 0 and two for Z = 1 among the eight sets of pixels, 60 give table "
        "2; the claims are about all of them.",
    ),
    **SHARED,
)
