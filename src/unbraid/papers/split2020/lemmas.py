"""split2020's two lemmas."""

from typing import Any

from unbraid.experiments.base import Results, Scale, experiment
from unbraid.experiments.drawing import draw_sides
from unbraid.experiments.evidence import find_largest
from unbraid.papers.split2020.exact import score_lemmas

TOLERANCE = 1e-5
FULL: dict[str, Any] = {"points": 8, "nodes": 80, "grid": 601, "seed": range(10)}
LEMMAS = {
    "smoke": Scale({"points": 3, "nodes": 60, "grid": 301, "seed": range(2)}),
    "small": Scale({**FULL, "seed": range(4)}),
    **dict.fromkeys(("budget", "paper"), Scale(FULL)),
}


def build_facts(name: str, equation: str) -> dict[str, Any]:
    noise = ["independent noise", "correlated noise"]
    largest = find_largest(noise, f"{name}/deviation", "largest deviation", high=TOLERANCE)
    return {
        "measure": score_lemmas,
        "scales": LEMMAS,
        "claims": {f"{equation}, with independent and with correlated noise": largest},
        "notes": (
            f"Every model is random, with two latents and a few data points. Equal means within {TOLERANCE:g} nats.",
            "The two sides are computed separately: information by quadrature from the densities of training, and the "
            "other terms from sums over a grid.",
        ),
    }


@experiment(
    "split2020/lemma1",
    **build_facts("lemma1", "I(z_j; x | z_S) = I(z_S, z_j; x) - I(z_S; x)"),
    scores=("lemma1/conditional", "lemma1/by-chain", "lemma1/deviation"),
)
def lemma1(results: Results, make: Any) -> Any:
    """Conditional information against the difference of information, on models that can be computed."""
    return draw_sides(make, results, "lemma1/by-chain", "lemma1/conditional")


@experiment(
    "split2020/lemma2",
    **build_facts("lemma2", "I(z_S; x) - sum of I(z_i; x) = TC(z_S | x) - TC(z_S)"),
    scores=("lemma2/by-information", "lemma2/by-correlation", "lemma2/deviation"),
)
def lemma2(results: Results, make: Any) -> Any:
    """Information that latents hold only together, against conditional minus plain total correlation."""
    return draw_sides(make, results, "lemma2/by-information", "lemma2/by-correlation")
