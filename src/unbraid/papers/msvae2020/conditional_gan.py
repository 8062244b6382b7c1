r"""msvae2020, lemma 1: what a conditional GAN minimises, on models of which every term is a sum.

With the data p(x, c), a generator p_th(x | c) of the same p(c), its posterior q(c | x), and I the mutual information
of its x and c,

    KL(p_th(x, c) || p(x, c)) = upper - lower
    upper = E log p_th(x | c) / p(x) = I + KL(p_th(x) || p(x))
    lower = E log p(c | x) / p(c)    = I - E KL(q(c | x) || p(c | x))

with expectations over p_th(x, c). So upper and lower are bounds of I, and meet it if the generator is the data's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.evidence import Finding, combine, pool_runs
from unbraid.metrics import Score
from unbraid.report.svg import PALETTE
from unbraid.report.sweep_figures import draw_scatter
from unbraid.report.tables import Member

RANDOM, OWN = "random generator", "generator of the data"
DIVERGENCE, DIFFERENCE = "lemma1/divergence", "lemma1/upper-less-lower"
UPPER, LOWER, INFORMATION = "lemma1/upper", "lemma1/lower", "lemma1/information"
APART = ("lemma1/of-divergence", "lemma1/of-upper", "lemma1/of-lower")
"""By how much the three equations fail, in nats."""

SCORES = (DIVERGENCE, DIFFERENCE, UPPER, INFORMATION, LOWER, *APART)
EXACT = 1e-10
MODELS: dict[str, Any] = {"observations": 12, "codes": 4, "seed": range(20)}


def sides(p: np.ndarray, generator: np.ndarray) -> dict[str, float]:
    """All terms, of the data p(x, c) [observations, codes] and the generator p_th(x | c); both above 0 everywhere."""
    code = p.sum(0)
    made = generator * code  # p_th(x, c)
    x, made_x = p.sum(1, keepdims=True), made.sum(1, keepdims=True)

    def mean(ratio: np.ndarray) -> float:
        return float((made * np.log(ratio)).sum())

    information = mean(made / (made_x * code))
    marginal = float((made_x * np.log(made_x / x)).sum())
    posterior = float((made_x * _divergence(made / made_x, p / x)).sum())
    found = {
        DIVERGENCE: mean(made / p),
        UPPER: mean(generator / x),
        LOWER: mean(p / x / code),
        INFORMATION: information,
    }
    found[DIFFERENCE] = (information + marginal) - (information - posterior)
    apart = (
        found[DIVERGENCE] - found[DIFFERENCE],
        found[UPPER] - information - marginal,
        found[LOWER] - information + posterior,
    )
    return found | {name: abs(value) for name, value in zip(APART, apart, strict=True)}


def _divergence(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """KL of the rows of two tables, [rows, 1]."""
    return (first * np.log(first / second)).sum(1, keepdims=True)


def drawn(observations: int, codes: int, seed: int, own: bool) -> tuple[np.ndarray, np.ndarray]:
    """A random p(x, c), and a random generator or that of the data."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(observations * codes)).reshape(observations, codes)
    return p, p / p.sum(0) if own else rng.dirichlet(np.ones(observations), size=codes).T


def lemma_members(settings: Mapping[str, Any]) -> list[Member]:
    """All terms of models with some `observations` and `codes`, drawn by `seed`."""
    members = []
    for series in (RANDOM, OWN):
        for seed in settings["seed"]:
            model = drawn(settings["observations"], settings["codes"], seed, series == OWN)
            count = settings["observations"]
            scores = {n: Score("lemma1", n.partition("/")[2], v, count) for n, v in sides(*model).items()}
            members.append(Member(f"{series}, {seed}", {"recipe": series, "seed": seed}, "finished", "", scores))
    return members


def largest(series: Sequence[str], score: str) -> Finding:
    """The largest value of a score over all models is 0."""
    return pool_runs(series, [score], lambda s: s[..., 0].max(-1), f"largest {score}", high=EXACT)


def gap(series: str, first: str, second: str, **where: float) -> Finding:
    """The smallest difference of two scores over all models."""
    what = f"least {first} - {second}"
    return pool_runs([series], [first, second], lambda s: (s[..., 0] - s[..., 1]).min(-1), what, **where)


@experiment(
    "msvae2020/lemma1",
    year=2020,
    reference="msvae2020, lemma 1",
    measure=lemma_members,
    scales={
        "smoke": Scale({**MODELS, "seed": range(2)}),
        "small": Scale(MODELS),
        "budget": Scale(MODELS),
        "paper": Scale(MODELS),
    },
    scores=SCORES,
    claims=(
        Claim(
            "KL(p_th(x, c) || p(x, c)) = [I + KL(p_th(x) || p(x))] - [I - E KL(q(c|x) || p(c|x))]",
            combine(*(largest([RANDOM, OWN], name) for name in APART)),
        ),
        Claim(
            "the brackets are an upper and a lower bound of I",
            combine(gap(RANDOM, UPPER, INFORMATION, low=0.0), gap(RANDOM, INFORMATION, LOWER, low=0.0)),
        ),
        Claim(
            "at the limit, p_th(x | c) = p(x | c), both KL terms vanish",
            combine(largest([OWN], DIVERGENCE), gap(OWN, LOWER, UPPER, low=-EXACT, high=EXACT)),
        ),
    ),
    notes=(
        "Every model is drawn at random: p(x, c) and p_th(x | c) from flat Dirichlet distributions, p(c) shared. "
        f"Equal means within {EXACT:g} nats.",
        "Both brackets are computed twice: as expected log ratios of the densities that a discriminator sees, and from "
        "I and the two KL terms; of-divergence, of-upper and of-lower are by how much they differ.",
    ),
)
def lemma1(results: Results, make: Any) -> Any:
    """KL of the joint distributions against the difference of the two bounds, model by model."""
    figure = draw_scatter(make, results.members, DIFFERENCE, DIVERGENCE)
    axes = figure.axes[0]
    ends = axes.get_xlim()
    axes.plot(ends, ends, color=PALETTE[-1], linewidth=0.8, zorder=0)
    return figure
