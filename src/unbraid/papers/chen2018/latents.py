"""Latents against factors of chosen models: chen2018's figure S4 (the best) and figures S6 to S11 (by their MIG)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, experiment
from unbraid.experiments.drawing import draw_latents, format_title
from unbraid.experiments.evidence import compare_extremes, exists
from unbraid.papers.chen2018.setup import BOTH, MIG, SPRITES, TCVAE, VAE, build_facts

MAX_DISTANCE = 0.05
"""Distance from a value of MIG up to which a model is near it."""

SHOWN = "Lines are means over all other factors, bands one standard deviation. Latents below .05 nats are left out."


COMPARE_BEST = compare_extremes(
    *BOTH, "beta", [MIG], lambda rows: rows[..., 0].max(-1), "highest MIG of all runs", low=0.0
)


@experiment(
    "chen2018/figS4",
    **build_facts(),
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scores=(MIG,),
    claims=(Claim("the best beta-TCVAE has a higher MIG than the best beta-VAE", COMPARE_BEST),),
    notes=(
        SPRITES,
        SHOWN,
        "The claim is our reading of the figure; the text states none. A bootstrap of maxima is too sure of itself: "
        "the interval comes from exchanging runs of both methods at each beta.",
    ),
)
def fig_s4(results: Results, make: Any) -> Any:
    """Latents against factors, of the best beta-TCVAE and the best beta-VAE."""
    best = [results.select_best(name, MIG) for name in reversed(BOTH)]
    return draw_latents(make, {format_title(member, MIG): results.load_evaluation(member) for member in best})


def build_level_facts(level: float, remark: str) -> dict[str, Any]:
    """Return the facts of the figure of a beta-TCVAE with a MIG near `level`; `remark` is the paper's."""
    note = f"The paper says of this model: {remark}. We test whether such a model exists, within {MAX_DISTANCE} (ours)."
    near = exists(
        "beta-tcvae", MIG, lambda mig: np.abs(mig - level) < MAX_DISTANCE, f"a MIG within {MAX_DISTANCE} of {level}"
    )
    claim = Claim(f"there are beta-TCVAEs with a MIG near {level}", near)
    notes = (SPRITES, SHOWN, note)
    return build_facts(series={"beta-tcvae": TCVAE}, scores=(MIG,), claims=(claim,), notes=notes)


def draw_nearest(results: Results, make: Any, level: float) -> Any:
    """Draw the model whose MIG is nearest to `level`."""
    models = results.select_members("beta-tcvae", MIG)
    nearest = min(models, key=lambda member: abs(member.scores[MIG].value - level))
    return draw_latents(make, {format_title(nearest, MIG): results.load_evaluation(nearest)})


@experiment("chen2018/figS6", **build_level_facts(0.0, "extremely entangled"))
def fig_s6(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0."""
    return draw_nearest(results, make, 0.0)


@experiment("chen2018/figS7", **build_level_facts(0.1, "less entangled, but not aligned with its axes"))
def fig_s7(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.1."""
    return draw_nearest(results, make, 0.1)


@experiment("chen2018/figS8", **build_level_facts(0.2, "still entangled, but some form is appearing"))
def fig_s8(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.2."""
    return draw_nearest(results, make, 0.2)


@experiment("chen2018/figS9", **build_level_facts(0.3, "much more disentangled, with some nuances that are not"))
def fig_s9(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.3."""
    return draw_nearest(results, make, 0.3)


@experiment(
    "chen2018/figS10",
    **build_level_facts(0.4, "aligned with its axes, but rotation is entangled and position not perfect"),
)
def fig_s10(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.4."""
    return draw_nearest(results, make, 0.4)


@experiment("chen2018/figS11", **build_level_facts(0.5, "aligned with its axes and disentangled"))
def fig_s11(results: Results, make: Any) -> Any:
    """Latents against factors, of the beta-TCVAE with a MIG nearest to 0.5."""
    return draw_nearest(results, make, 0.5)
