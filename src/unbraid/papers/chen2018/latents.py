"""Latents against factors of chosen models: chen2018's figure S4 (the best) and figures S6 to S11 (by their MIG)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Evidence, Results, experiment
from unbraid.experiments.drawing import draw_latents, format_title
from unbraid.experiments.evidence import Finding
from unbraid.experiments.statistics import Cells, estimate
from unbraid.papers.chen2018.setup import BOTH, METRICS, MIG, OVER_BETA, SPRITES, TCVAE, VAE, without_shape
from unbraid.report.tables import Member

NEAR = 0.05
"""Distance from a value of MIG within which a model is near it."""

SHOWN = "Lines are means over all other factors, bands one standard deviation; latents below .05 nats are left out."


def pooled(cells: Cells) -> np.ndarray:
    """Scores [..., run] of all cells."""
    return np.concatenate([rows[..., 0] for rows in cells.values()], -1)


def best_of_each(results: Results) -> list[Evidence]:
    """The highest MIG of either method."""
    first, second = (
        {(name, at): rows for at, rows in results.group_scores(name, "beta", MIG).items()} for name in BOTH
    )

    def gap(cells: Cells) -> np.ndarray:
        of = [{key: rows for key, rows in cells.items() if key[0] == name} for name in BOTH]
        return pooled(of[1]).max(-1) - pooled(of[0]).max(-1)

    return [Evidence("highest MIG of all runs, beta-tcvae minus beta-vae", estimate({**first, **second}, gap), low=0.0)]


@experiment(
    "chen2018/figS4",
    year=2018,
    reference="chen2018, figure S4",
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scales=OVER_BETA,
    metrics=METRICS,
    derived={MIG: without_shape},
    scores=(MIG,),
    claims=(Claim("the best beta-TCVAE has a higher MIG than the best beta-VAE", best_of_each),),
    notes=(
        SPRITES,
        SHOWN,
        "That the higher of both is beta-TCVAE's is what the figure shows; the text states no claim.",
    ),
)
def fig_s4(results: Results, make: Any) -> Any:
    """Latents against factors, of the best beta-TCVAE and the best beta-VAE."""
    best = [results.select_best(name, MIG) for name in reversed(BOTH)]
    return draw_latents(make, {format_title(member, MIG): results.load_evaluation(member) for member in best})


# figures S6 to S11


def nearest(results: Results, level: float) -> Member:
    """The beta-TCVAE whose MIG is nearest to a value."""
    return min(results.select_members("beta-tcvae", MIG), key=lambda member: abs(member.scores[MIG].value - level))


def reached(level: float) -> Finding:
    """How far the nearest model is from a value of MIG."""

    def evidence(results: Results) -> list[Evidence]:
        cells = results.group_scores("beta-tcvae", "beta", MIG)
        found = estimate(cells, lambda c: np.abs(pooled(c) - level).min(-1))
        return [Evidence(f"distance of the nearest MIG from {level}", found, high=NEAR)]

    return evidence


def near(figure: str, level: float, what: str) -> dict[str, Any]:
    """The facts of one of the figures."""
    note = f"The paper says of this one: {what}. The claim that is tested is that there is such a model: near means "
    return {
        "year": 2018,
        "reference": f"chen2018, figure {figure}",
        "series": {"beta-tcvae": TCVAE},
        "scales": OVER_BETA,
        "metrics": METRICS,
        "derived": {MIG: without_shape},
        "scores": (MIG,),
        "claims": (Claim(f"there are beta-TCVAEs with a MIG near {level}", reached(level)),),
        "notes": (SPRITES, SHOWN, f"{note}within {NEAR} (ours)."),
    }


def draw_nearest(results: Results, make: Any, level: float) -> Any:
    """Panels of the model whose MIG is nearest to a value."""
    member = nearest(results, level)
    return draw_latents(make, {format_title(member, MIG): results.load_evaluation(member)})


@experiment("chen2018/figS6", **near("S6", 0.0, "extremely entangled"))
def fig_s6(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0."""
    return draw_nearest(results, make, 0.0)


@experiment("chen2018/figS7", **near("S7", 0.1, "less entangled, but not aligned with its axes"))
def fig_s7(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.1."""
    return draw_nearest(results, make, 0.1)


@experiment("chen2018/figS8", **near("S8", 0.2, "still entangled, but some form is appearing"))
def fig_s8(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.2."""
    return draw_nearest(results, make, 0.2)


@experiment("chen2018/figS9", **near("S9", 0.3, "much more disentangled, with some nuances that are not"))
def fig_s9(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.3."""
    return draw_nearest(results, make, 0.3)


@experiment(
    "chen2018/figS10", **near("S10", 0.4, "aligned with its axes, but rotation is entangled and position not perfect")
)
def fig_s10(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.4."""
    return draw_nearest(results, make, 0.4)


@experiment("chen2018/figS11", **near("S11", 0.5, "aligned with its axes and disentangled"))
def fig_s11(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.5."""
    return draw_nearest(results, make, 0.5)
