"""msvae2020, tables 2 and 3: given X alone C and Z depend on each other, given Y as well they do not."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import label_axes
from unbraid.experiments.evidence import pool_runs
from unbraid.metrics import Score
from unbraid.papers.msvae2020.masks import CODES, COINS, PIXELS, Joint, Process, dependence, processes, witness
from unbraid.report.svg import PALETTE
from unbraid.report.tables import Member

GIVEN_X: Joint = {at: Fraction(0) for at in ((c, z) for c in CODES for z in COINS)} | {
    (1, 1): Fraction(3, 8),
    (2, 0): Fraction(1, 4),
    (2, 1): Fraction(3, 8),
}
"""Table 2: P(C, Z | X = 4)."""

GIVEN_BOTH: Joint = {at: Fraction(int(at == (1, 1))) for at in GIVEN_X}
"""Table 3: P(C, Z | X = 4, Y = 1)."""

WITNESS, ALL = "smallest masks", "all masks that give table 2"
CELLS = {at: f"cell/C{at[0]}Z{at[1]}" for at in GIVEN_X}
DEVIATION, DEPENDENCE = "separation/deviation", "separation/dependence"
SCORES = (*CELLS.values(), DEVIATION, DEPENDENCE)
EXACT = 1e-12
"""What is equal differs by a fraction that is 0, not merely by less than this."""

SCALES = {name: Scale({"seed": range(6)}) for name in ("smoke", "small", "budget", "paper")}
NOTES = (
    "Probabilities are sums of fractions over all outcomes; nothing is drawn or rounded. A seed renames the pixels.",
    "deviation is the largest difference from the paper's probabilities, dependence the largest |P(C, Z) - P(C) P(Z)|.",
    "The text lacks figure 36. Pictures and masks here are sets of three pixels: Y is {a}, {b} or {c}; masks {}, {a}, "
    "{c} for Z = 0 and {a}, {b} for Z = 1; image 4 is {a, b}.",
)


def given_x(settings: Mapping[str, Any]) -> list[Member]:
    """Table 2, for the smallest masks that give it, under as many names of the pixels as there are seeds."""
    return _members(WITNESS, _named(settings["seed"]), lambda process: process.posterior(4), GIVEN_X)


def given_both(settings: Mapping[str, Any]) -> list[Member]:
    """Table 3, for the smallest masks and for all choices of masks that give table 2."""
    every = [process for process in processes() if process.posterior(4) == GIVEN_X]
    made = [(WITNESS, _named(settings["seed"])), (ALL, every)]
    return [
        member
        for series, own in made
        for member in _members(series, own, lambda process: process.posterior(4, 1), GIVEN_BOTH)
    ]


def _named(seeds: Sequence[int]) -> list[Process]:
    orders = list(permutations(PIXELS))
    return [witness(orders[seed % len(orders)]) for seed in seeds]


def _members(series: str, own: Sequence[Process], posterior: Callable[[Process], Joint], paper: Joint) -> list[Member]:
    members = []
    for seed, process in enumerate(own):
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


def largest(series: Sequence[str], score: str, **where: float) -> Any:
    """The largest value of a score over all processes of some series."""
    return pool_runs(series, [score], lambda s: s[..., 0].max(-1), f"largest {score}", **where)


def least(series: Sequence[str], score: str, **where: float) -> Any:
    """The smallest value of a score over all processes of some series."""
    return pool_runs(series, [score], lambda s: s[..., 0].min(-1), f"smallest {score}", **where)


def draw_joint(results: Results, make: Any, title: str) -> Any:
    """P(C, Z) beside P(C) P(Z), cell by cell."""
    one = results.select_members(WITNESS, DEPENDENCE)[0]
    joint = np.array([[one.scores[CELLS[c, z]].value for z in COINS] for c in CODES])
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


def published(joint: Joint, *series: str) -> dict[str, dict[str, str]]:
    """The paper's fractions, for the table."""
    return {name: {CELLS[at]: str(share) for at, share in joint.items()} for name in series}


@experiment(
    "msvae2020/table2",
    year=2020,
    reference="msvae2020, table 2",
    measure=given_x,
    scales=SCALES,
    scores=SCORES,
    claims=(
        Claim("P(C, Z | X = 4) is that of table 2", largest([WITNESS], DEVIATION, low=-EXACT, high=EXACT)),
        Claim("given X = 4, C and Z are not independent", least([WITNESS], DEPENDENCE, low=EXACT)),
    ),
    published=published(GIVEN_X, WITNESS),
    notes=NOTES,
)
def table2(results: Results, make: Any) -> Any:
    """P(C, Z | X = 4) of the example of d-separation, by enumeration."""
    return draw_joint(results, make, "X = 4")


@experiment(
    "msvae2020/table3",
    year=2020,
    reference="msvae2020, table 3",
    measure=given_both,
    scales=SCALES,
    scores=SCORES,
    claims=(
        Claim("P(C, Z | X = 4, Y = 1) is that of table 3", largest([WITNESS, ALL], DEVIATION, low=-EXACT, high=EXACT)),
        Claim(
            "given X = 4 and Y = 1, C and Z are independent",
            largest([WITNESS, ALL], DEPENDENCE, low=-EXACT, high=EXACT),
        ),
    ),
    published=published(GIVEN_BOTH, WITNESS, ALL),
    notes=(
        *NOTES,
        "Of the 1,568 choices of three masks for Z = 0 and two for Z = 1 among the eight sets of pixels, 60 give table "
        "2; the claims are about all of them.",
    ),
)
def table3(results: Results, make: Any) -> Any:
    """P(C, Z | X = 4, Y = 1) of the example of d-separation, by enumeration."""
    return draw_joint(results, make, "X = 4, Y = 1")
