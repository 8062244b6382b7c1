r"""The loss of a conditional GAN, on models whose every term is a sum: msvae2020, lemma 1.

With the data p(x, c), a generator p_th(x | c) of the same p(c), its posterior q(c | x), and the mutual information I of
its x and c,

    KL(p_th(x, c) || p(x, c)) = upper - lower
    upper = E log p_th(x | c) / p(x) = I + KL(p_th(x) || p(x))
    lower = E log p(c | x) / p(c)    = I - E KL(q(c | x) || p(c | x))

with expectations over p_th(x, c). So upper and lower bound I, and equal it if the generator is p(x | c).
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from unbraid.experiments.base import Scale, experiment
from unbraid.experiments.drawing import plot_sides
from unbraid.experiments.evidence import Finding, combine, find_extreme, find_largest
from unbraid.experiments.results import make_member
from unbraid.report.tables import Member

RANDOM, OWN = "random generator", "generator of the data"
DIVERGENCE, DIFFERENCE = "lemma1/divergence", "lemma1/upper-less-lower"
UPPER, LOWER, INFORMATION = "lemma1/upper", "lemma1/lower", "lemma1/information"
ERRORS = ("lemma1/of-divergence", "lemma1/of-upper", "lemma1/of-lower")
"""Absolute errors of the three equations, in nats."""

SCORES = (DIVERGENCE, DIFFERENCE, UPPER, INFORMATION, LOWER, *ERRORS)
EXACT = 1e-10
MODELS: dict[str, Any] = {"observations": 12, "codes": 4, "seed": range(20)}


def compute_terms(p: np.ndarray, generator: np.ndarray) -> dict[str, float]:
    """Return all terms of the lemma.

    `p` is p(x, c) and `generator` p_th(x | c), both [observations, codes] and above 0 everywhere.
    """
    code = p.sum(0)
    joint = generator * code  # p_th(x, c)
    x, generated_x = p.sum(1, keepdims=True), joint.sum(1, keepdims=True)

    def mean_log(ratio: np.ndarray) -> float:
        return float((joint * np.log(ratio)).sum())

    information = mean_log(joint / (generated_x * code))
    marginal = float((generated_x * np.log(generated_x / x)).sum())
    q = joint / generated_x
    posterior = float((generated_x * (q * np.log(q / (p / x))).sum(1, keepdims=True)).sum())
    terms = {
        DIVERGENCE: mean_log(joint / p),
        UPPER: mean_log(generator / x),
        LOWER: mean_log(p / x / code),
        INFORMATION: information,
        DIFFERENCE: (information + marginal) - (information - posterior),
    }
    errors = (
        terms[DIVERGENCE] - terms[DIFFERENCE],
        terms[UPPER] - information - marginal,
        terms[LOWER] - information + posterior,
    )
    return terms | {name: abs(value) for name, value in zip(ERRORS, errors, strict=True)}


def draw_model(observations: int, codes: int, seed: int, own: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random p(x, c), and a random generator; `own` returns p(x | c) as the generator."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(observations * codes)).reshape(observations, codes)
    return p, p / p.sum(0) if own else rng.dirichlet(np.ones(observations), size=codes).T


def measure_lemma(settings: Mapping[str, Any]) -> list[Member]:
    """Return all terms of random models with some `observations` and `codes`, one for each `seed`."""
    count, codes = settings["observations"], settings["codes"]
    return [
        make_member(series, seed, compute_terms(*draw_model(count, codes, seed, series == OWN)), count)
        for series, seed in product((RANDOM, OWN), settings["seed"])
    ]


def exceeds(series: str, first: str, second: str, **where: float) -> Finding:
    """Return the evidence on the smallest difference of two scores over all models."""
    what = f"least {first} - {second}"
    return find_extreme([series], [first, second], lambda s: (s[:, 0] - s[:, 1]).min(), what, **where)


experiment.add(
    "msvae2020/lemma1",
    "KL of the joint distributions against the difference of the two bounds, model by model.",
    plot_sides(DIFFERENCE, DIVERGENCE),
    measure=measure_lemma,
    scales={"smoke": Scale({**MODELS, "seed": range(2)}), **dict.fromkeys(("small", "budget", "paper"), Scale(MODELS))},
    scores=SCORES,
    ranges=dict.fromkeys((DIVERGENCE, INFORMATION, *ERRORS), (0.0, math.inf)),
    claims={
        "KL(p_th(x, c) || p(x, c)) = [I + KL(p_th(x) || p(x))] - [I - E KL(q(c|x) || p(c|x))]": combine(
            *(find_largest([RANDOM, OWN], name, high=EXACT) for name in ERRORS)
        ),
        "the brackets are an upper and a lower bound of I": combine(
            exceeds(RANDOM, UPPER, INFORMATION, low=0.0), exceeds(RANDOM, INFORMATION, LOWER, low=0.0)
        ),
        "at the limit, p_th(x | c) = p(x | c), both KL terms vanish": combine(
            find_largest([OWN], DIVERGENCE, high=EXACT), exceeds(OWN, LOWER, UPPER, low=-EXACT, high=EXACT)
        ),
    },
    notes=(
        "Every model is random: p(x, c) and p_th(x | c) come from flat Dirichlet distributions and share p(c). "
        f"Equal means within {EXACT:g} nats.",
        "Both brackets are computed twice: as expected log ratios of the densities that a discriminator sees, and from "
        "I and the two KL terms; of-divergence, of-upper and of-lower are the differences.",
    ),
)
