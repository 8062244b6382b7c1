"""esmaeili2018, figures 2 to 4: the decompositions of the bound, and what each of its terms is for."""

from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.drawing import label_axes
from unbraid.experiments.evidence import Finding, combine, compare_means
from unbraid.papers.esmaeili2018.identities import IDENTITIES, PRIORS, deviations
from unbraid.papers.esmaeili2018.removal import SCORES, SERIES, removals
from unbraid.papers.esmaeili2018.setup import largest_of
from unbraid.report.svg import PALETTE

TOLERANCE = 1e-5
FULL = {"points": 5, "nodes": 24, "step": 0.3}
GAIN, MI, DATA, PRIOR = SCORES


@experiment(
    "esmaeili2018/decomposition",
    year=2018,
    reference="esmaeili2018, figures 2 and 4",
    measure=deviations,
    scales={
        "smoke": Scale({"points": 3, "nodes": 6, "step": 1.0, "seed": range(2)}),
        "small": Scale({**FULL, "seed": range(3)}),
        "budget": Scale({**FULL, "seed": range(10)}),
        "paper": Scale({**FULL, "seed": range(10)}),
    },
    scores=IDENTITIES,
    claims=(
        Claim("the bound is the sum of four terms (figure 2)", largest_of(PRIORS, IDENTITIES[0], high=TOLERANCE)),
        Claim("term 4 is A + B (figure 4)", largest_of(PRIORS, IDENTITIES[1], high=TOLERANCE)),
        Claim("term B is i + ii (figure 4)", largest_of(PRIORS, IDENTITIES[2], high=TOLERANCE)),
    ),
    notes=(
        "Scores are absolute differences in nats between the left side, integrated on a grid, and the terms on the "
        "right, from the library's own densities at Gauss-Hermite nodes. A seed draws the model.",
    ),
)
def decomposition(results: Results, make: Any) -> Any:
    """How far both sides of the decompositions are apart, on models whose integrals can be taken."""
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


def higher(series: str, score: str) -> Finding:
    """A score is higher than with all terms."""
    return compare_means(SERIES[0], series, score, low=0.0)


def lower(series: str, score: str) -> Finding:
    """A score is lower than with all terms."""
    return compare_means(SERIES[0], series, score, high=0.0)


@experiment(
    "esmaeili2018/fig3",
    year=2018,
    reference="esmaeili2018, figure 3",
    measure=removals,
    scales={
        "smoke": Scale({"points": 8, "steps": 5, "draws": 2, "seed": range(2)}),
        "small": Scale({"points": 32, "steps": 2_000, "draws": 200, "seed": range(3)}),
        "budget": Scale({"points": 32, "steps": 4_000, "draws": 200, "seed": range(10)}),
        "paper": Scale({"points": 32, "steps": 4_000, "draws": 200, "seed": range(10)}),
    },
    scores=SCORES,
    claims=(
        Claim("without term 1 the code is ignored", combine(lower(SERIES[1], GAIN), lower(SERIES[1], MI))),
        Claim("without term 2 codes overlap less: I(x; z) is larger", higher(SERIES[2], MI)),
        Claim("without term 3 p(x) departs from the data", higher(SERIES[3], DATA)),
        Claim("without term 4 q(z) departs from the prior", higher(SERIES[4], PRIOR)),
    ),
    notes=(
        "The text shows this without stating its data or networks: points around the corners of a square, one latent, "
        "a decoder with a fixed deviation of .25 (all ours). log p(x) is an integral over 201 places, and q(z) a sum "
        "over all points.",
        "data-kl is -E log p(x) - log N of densities, so it may be negative; only its differences mean something. "
        "Without term 3 nothing bounds it, and it grows for as long as one trains.",
    ),
)
def fig3(results: Results, make: Any) -> Any:
    """The four terms of models that were trained without one of them."""
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
