"""split2020's two lemmas."""

from typing import Any

from unbraid.experiments.base import Claim, Results, Scale, experiment
from unbraid.experiments.evidence import pool_runs
from unbraid.papers.split2020.exact import score_lemmas
from unbraid.report.svg import PALETTE
from unbraid.report.sweep_figures import draw_scatter

TOLERANCE = 1e-5
FULL: dict[str, Any] = {"points": 8, "nodes": 80, "grid": 601, "seed": range(10)}
LEMMAS = {
    "smoke": Scale({"points": 3, "nodes": 60, "grid": 301, "seed": range(2)}),
    "small": Scale({**FULL, "seed": range(4)}),
    "budget": Scale(FULL),
    "paper": Scale(FULL),
}


def build_facts(name: str, equation: str) -> dict[str, Any]:
    """Return the facts of one of the lemmas."""
    noise = ["independent noise", "correlated noise"]
    largest = pool_runs(noise, [f"{name}/deviation"], lambda s: s[..., 0].max(-1), "largest deviation", high=TOLERANCE)
    return {
        "year": 2020,
        "reference": f"split2020, {name.replace('lemma', 'lemma ')}",
        "measure": score_lemmas,
        "scales": LEMMAS,
        "claims": (Claim(f"{equation}, with independent and with correlated noise", largest),),
        "notes": (
            f"Every model is random, with two latents and a few data points. Equal means within {TOLERANCE:g} nats.",
            "The two sides are computed separately: information by quadrature from the densities of training, and the "
            "other terms from sums over a grid.",
        ),
    }


def draw_sides(results: Results, make: Any, across: str, up: str) -> Any:
    """Draw one side of a lemma against the other, one point per model."""
    figure = draw_scatter(make, results.members, across, up)
    axes = figure.axes[0]
    ends = axes.get_xlim()
    axes.plot(ends, ends, color=PALETTE[-1], linewidth=0.8, zorder=0)
    return figure


@experiment(
    "split2020/lemma1",
    **build_facts("lemma1", "I(z_j; x | z_S) = I(z_S, z_j; x) - I(z_S; x)"),
    scores=("lemma1/conditional", "lemma1/by-chain", "lemma1/deviation"),
)
def lemma1(results: Results, make: Any) -> Any:
    """Conditional information against the difference of information, on models that can be computed."""
    return draw_sides(results, make, "lemma1/by-chain", "lemma1/conditional")


@experiment(
    "split2020/lemma2",
    **build_facts("lemma2", "I(z_S; x) - sum of I(z_i; x) = TC(z_S | x) - TC(z_S)"),
    scores=("lemma2/by-information", "lemma2/by-correlation", "lemma2/deviation"),
)
def lemma2(results: Results, make: Any) -> Any:
    """Information that latents hold only together, against conditional minus plain total correlation."""
    return draw_sides(results, make, "lemma2/by-information", "lemma2/by-correlation")
