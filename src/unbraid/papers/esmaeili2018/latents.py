"""esmaeili2018, figures 5, 6, 8 and 11: what single latents know and draw."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, Scale, StandIn, experiment
from unbraid.experiments.drawing import draw_pictures, label_axes
from unbraid.experiments.evidence import combine, compare_means
from unbraid.metrics import Score
from unbraid.papers.esmaeili2018.pictures import from_class, from_row
from unbraid.papers.esmaeili2018.setup import (
    BETA_VAE,
    BUDGET_DIGITS,
    FASHION,
    HFVAE,
    LEARNED,
    MNIST,
    OURS,
    PAPER_DIGITS,
    QUICK,
    SMALL_DIGITS,
    SMOKE,
    TELLS,
    mean_of,
    on,
)
from unbraid.report.svg import PALETTE

KEPT = "kept/classifier"
MOST = 0.5
"""A share above this one is most."""

KEEPING = {"smoke": {KEPT: (KEPT, QUICK)}} | {key: {KEPT: (KEPT, LEARNED)} for key in ("small", "budget", "paper")}


def at_scales(*series: str, data: Mapping[str, Mapping[str, Any]]) -> dict[str, Scale]:
    """The four scales of an experiment on digits or garments, each series on its own data."""
    shared = {"smoke": SMOKE, "small": SMALL_DIGITS, "budget": BUDGET_DIGITS, "paper": PAPER_DIGITS}
    own = {name: dict(data[name]) for name in series}
    quick = on({"latents": "normal+concrete:3"}, *series)
    return {k: Scale(s, per_series=quick if k == "smoke" else own, measures=KEEPING[k]) for k, s in shared.items()}


SETS = {"MNIST": MNIST, "Fashion-MNIST": FASHION}
RANGE = "Latents go from -3 to 3, all else stays as encoded; those of a variance below .01 are left out of the score."


@experiment(
    "esmaeili2018/fig5",
    year=2018,
    reference="esmaeili2018, figure 5",
    series=dict.fromkeys(SETS, HFVAE),
    scales=at_scales(*SETS, data=SETS),
    scores=(KEPT,),
    claims=tuple(
        Claim(f"moving one continuous latent mostly keeps the class, {name}", mean_of(name, KEPT, low=MOST))
        for name in SETS
    ),
    notes=(OURS, TELLS, RANGE, "The paper shows pictures alone; the measure and its bound, one half, are ours."),
)
def fig5(results: Results, make: Any) -> Any:
    """What HFVAE draws on MNIST and Fashion-MNIST as one continuous latent moves from -3 to 3."""
    columns = [[(f"{name}, row {k}", from_row(results, name, k)) for k in range(2)] for name in results.series]
    return draw_pictures(make, columns)


@experiment(
    "esmaeili2018/fig11",
    year=2018,
    reference="esmaeili2018, figure 11",
    series={"Fashion-MNIST": HFVAE},
    scales=at_scales("Fashion-MNIST", data=SETS),
    scores=(KEPT,),
    claims=(Claim("moving one continuous latent mostly keeps the garment", mean_of("Fashion-MNIST", KEPT, low=MOST)),),
    notes=(OURS, TELLS, RANGE, "The paper shows pictures alone; the measure and its bound, one half, are ours."),
)
def fig11(results: Results, make: Any) -> Any:
    """What HFVAE draws on Fashion-MNIST as one latent moves from -3 to 3, the other ones at 0, for three classes."""
    return draw_pictures(make, [[(f"class {k}", from_class(results, "Fashion-MNIST", k))] for k in range(3)])


# figure 6

LATENT = "latent-mi/exact/"
INFORMATIVE, REST, SATURATION = "informative latents", "mean of the three least informative", "share of log N"
LEAST = 0.1
"""Nats that a latent must know of its row to count as informative (ours)."""


def information(scores: Mapping[str, Score]) -> np.ndarray:
    """I(x; z_d) of each continuous latent, the largest first."""
    found = [score.value for name, score in scores.items() if name.startswith(LATENT)]
    if not found:
        raise KeyError(LATENT)
    return np.sort(found)[::-1]


def informative(scores: Mapping[str, Score]) -> Score:
    """How many continuous latents know something of their row."""
    values = information(scores)
    return Score("latent-mi", "exact", float((values > LEAST).sum()), len(values), part="informative")


def rest(scores: Mapping[str, Score]) -> Score:
    """Mean information of the three latents that know least."""
    values = information(scores)
    return Score("latent-mi", "exact", float(values[-3:].mean()), len(values), part="rest")


def saturation(scores: Mapping[str, Score]) -> Score:
    """I(x; z) of all latents as a share of log N, which it cannot exceed."""
    whole = scores["mi/exact"]
    ceiling = next(score.details["ceiling"] for name, score in scores.items() if name.startswith(LATENT))
    return Score("mi", "exact", whole.value / ceiling, whole.samples, part="saturation")


ALPHAS = {"alpha 1": HFVAE, "alpha 0": {**HFVAE, "alpha": 0}}


@experiment(
    "esmaeili2018/fig6",
    year=2018,
    reference="esmaeili2018, figure 6",
    series=ALPHAS,
    scales={
        k: Scale(s.settings, s.per_series) for k, s in at_scales(*ALPHAS, data=dict.fromkeys(ALPHAS, MNIST)).items()
    },
    metrics=("latent-mi/exact", "mi/exact"),
    derived={INFORMATIVE: informative, REST: rest, SATURATION: saturation},
    scores=(INFORMATIVE, REST, SATURATION),
    claims=(
        Claim("about 7 of 10 latents are informative", mean_of("alpha 1", INFORMATIVE, low=5.5, high=8.5)),
        Claim("the others go to 0", mean_of("alpha 1", REST, high=LEAST)),
        Claim("I(x; z) saturates at log N", mean_of("alpha 1", SATURATION, low=0.9)),
        Claim(
            "alpha hardly matters",
            combine(
                compare_means("alpha 1", "alpha 0", INFORMATIVE, low=-1.0, high=1.0),
                compare_means("alpha 1", "alpha 0", SATURATION, low=-0.05, high=0.05),
            ),
        ),
    ),
    notes=(
        OURS,
        f"Information is that of the 10,000 test rows, so log N = 9.21. Informative means more than {LEAST} nats; "
        "about 7 means 6 to 8; saturated means .9 of log N; hardly means one latent and .05 of log N (all ours).",
        "The paper shows the course of training; this is its end.",
    ),
)
def fig6(results: Results, make: Any) -> Any:
    """Mutual information of each continuous latent with the data, sorted, one line per run."""
    figure = make(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for color, series in zip(PALETTE, results.series, strict=False):
        for number, member in enumerate(results.select_members(series, INFORMATIVE)):
            values = information(member.scores)
            axes.plot(range(1, len(values) + 1), values, ".-", color=color, label=None if number else series)
    label_axes(axes, "latent, the most informative first", "I(x; z_d) in nats")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


# figure 8

FACES = {"HFVAE": {**HFVAE, "beta": 5}, "beta-VAE": {**BETA_VAE, "beta": 8}}
GAP = "largest gap of a factor"
CONV: dict[str, Any] = {"network": "conv-esmaeili", "batch": 512, "z": 20}
BINARY = {"HFVAE": {"latents": "normal:20+bernoulli:2"}}


def largest_gap(scores: Mapping[str, Score]) -> Score:
    """The largest gap of a single factor, of those whose mean is MIG."""
    score = scores["mig/histogram-mean"]
    return Score("mig", "histogram-mean", max(score.details["gaps"].values()), score.samples, part="largest")


@experiment(
    "esmaeili2018/fig8",
    year=2018,
    reference="esmaeili2018, figure 8",
    series=FACES,
    scales={
        "smoke": Scale(SMOKE, per_series={"HFVAE": {"latents": "normal+bernoulli:2"}}),
        "small": Scale(
            {**CONV, "data": "sprites", "data.positions": 8, "data.orientations": 10, "z": 10, "batch": 128}
            | {"steps": 500, "seed": range(3)},
            per_series={"HFVAE": {"latents": "normal+bernoulli:2"}},
        ),
        "budget": Scale(
            {**CONV, "data": StandIn("celeba", "sprites"), "steps": 4_000, "precision": "bf16", "seed": range(3)},
            per_series=BINARY,
        ),
        "paper": Scale(
            {**CONV, "data": StandIn("celeba", "sprites"), "steps": 20_000, "seed": range(3)}, per_series=BINARY
        ),
    },
    metrics=("mig/histogram-mean",),
    derived={GAP: largest_gap},
    scores=("mig/histogram-mean", GAP),
    claims=(Claim("some latents of HFVAE follow one named factor", mean_of("HFVAE", GAP, low=0.1)),),
    notes=(
        "The paper names what it sees in pictures (orientation, smile, sunglasses); that some latent tells more than a "
        "tenth of a labelled factor's entropy, beyond what the next one tells, is our measure of it.",
        "Steps and the size of the batch are ours. CelebA's files must be given; sprites are used without them.",
    ),
)
def fig8(results: Results, make: Any) -> Any:
    """What HFVAE and beta-VAE draw on CelebA as one continuous latent moves from -3 to 3."""
    return draw_pictures(make, [[(name, from_row(results, name, 0, most=10))] for name in results.series])
