"""The decompositions of the bound (esmaeili2018, figures 2 and 4) and the role of each term (figure 3)."""

import math
from typing import Any

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.evidence import Finding, combine, compare_means, find_largest
from unbraid.experiments.results import Results
from unbraid.papers.esmaeili2018.identities import IDENTITIES, PRIORS, score_identities
from unbraid.papers.esmaeili2018.removal import SCORES, SERIES, train_without_terms
from unbraid.report.svg import PALETTE, label_axes

TOLERANCE = 1e-5
FULL = {"points": 5, "nodes": 24, "step": 0.3}
GAIN, MI, DATA, PRIOR = SCORES


@experiment(
    "esmaeili2018/decomposition",
    reference="figures 2 and 4",
    measure=score_identities,
    scales={
        "smoke": Scale({"points": 3, "nodes": 6, "step": 1.0, "seed": range(2)}),
        "small": Scale({**FULL, "seed": range(3)}),
        **dict.fromkeys(("budget", "paper"), Scale({**FULL, "seed": range(10)})),
    },
    scores=IDENTITIES,
    ranges=dict.fromkeys(IDENTITIES, (0.0, math.inf)),
    claims={
        "the bound is the sum of four terms (figure 2)": find_largest(PRIORS, IDENTITIES[0], high=TOLERANCE),
        "term 4 is A + B (figure 4)": find_largest(PRIORS, IDENTITIES[1], high=TOLERANCE),
        "term B is i + ii (figure 4)": find_largest(PRIORS, IDENTITIES[2], high=TOLERANCE),
    },
    notes=(
        "Scores are absolute differences in nats between the left side, integrated on a grid, and the terms on the "
        "right, from the library's densities at Gauss-Hermite nodes. A seed draws the model.",
    ),
)
def decomposition(results: Results, make: Any) -> Any:
    """Distance between both sides of the decompositions, on models whose integrals can be computed."""
    figure = make(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for place, identity in enumerate(IDENTITIES):
        for color, series in zip(PALETTE, results.series, strict=False):
            values = results.group_scores(series, None, identity)[None][:, 0]
            named = series if place == 0 else None
            axes.plot([place] * len(values), values.clip(1e-16), "o", color=color, markersize=4, label=named)
    axes.axhline(TOLERANCE, linestyle=":", linewidth=1, color=PALETTE[-1])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    axes.set_xticks(range(len(IDENTITIES)), IDENTITIES)
    label_axes(axes, "", "difference in nats")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


def compare_with_all(series: str, score: str, **bounds: float) -> Finding:
    """Find a score without one of the terms minus that with all terms."""
    return compare_means(SERIES[0], series, score, **bounds)


@experiment(
    "esmaeili2018/fig3",
    measure=train_without_terms,
    scales={
        "smoke": Scale({"points": 8, "steps": 5, "draws": 2, "seed": range(2)}),
        "small": Scale({"points": 32, "steps": 2_000, "draws": 200, "seed": range(3)}),
        "budget": Scale({"points": 32, "steps": 4_000, "draws": 200, "seed": range(30)}),
        "paper": Scale({"points": 32, "steps": 4_000, "draws": 200, "seed": range(30)}),
    },
    scores=SCORES,
    ranges=dict.fromkeys(("mi/all-points", "prior-kl/all-points"), (0.0, math.inf)),
    claims={
        "without term 1 the code is ignored": combine(
            compare_with_all(SERIES[1], GAIN, high=0.0), compare_with_all(SERIES[1], MI, high=0.0)
        ),
        "without term 2 codes overlap less: I(x; z) is larger": compare_with_all(SERIES[2], MI, low=0.0),
        "without term 3 p(x) departs from the data": compare_with_all(SERIES[3], DATA, low=0.0),
        "without term 4 q(z) departs from the prior": compare_with_all(SERIES[4], PRIOR, low=0.0),
    },
    notes=(
        "The text does not state its data or networks. Ours are points around the corners of a square, one latent and "
        "a decoder with a fixed deviation of .25. log p(x) is an integral over 201 values of z, q(z) a sum over all "
        "points.",
        "data-kl is -E log p(x) - log N of densities, so it may be negative; only its differences have a meaning. "
        "Without term 3 nothing bounds it, and it grows as long as training lasts.",
    ),
)
def fig3(results: Results, make: Any) -> Any:
    """The four terms of models that are trained without one of them."""
    figure = make(figsize=(8.0, 2.8), layout="constrained")
    for axes, score in zip(figure.subplots(1, 4), SCORES, strict=True):
        for place, series in enumerate(results.series):
            values = results.group_scores(series, None, score)[None][:, 0]
            axes.plot([place] * len(values), values, "o", color=PALETTE[place], markersize=4, alpha=0.7)
        axes.set_yscale("symlog", linthresh=10)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xticks(range(len(results.series)), ["all", "-1", "-2", "-3", "-4"])
        axes.set_title(score)
        label_axes(axes, "", "")
    return figure
