"""Latents against factors of chosen models: chen2018's figure S4 (the best) and figures S6 to S11 (by their MIG)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import experiment
from unbraid.experiments.drawing import draw_latents, format_title
from unbraid.experiments.evidence import compare_extremes, exists
from unbraid.experiments.results import Results
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
    claims={"the best beta-TCVAE has a higher MIG than the best beta-VAE": COMPARE_BEST},
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


def add_level(name: str, level: float, remark: str) -> None:
    """Register the figure of the beta-TCVAE whose MIG is nearest to `level`; `remark` is what the paper says of it."""

    def draw(results: Results, make: Any) -> Any:
        models = results.select_members("beta-tcvae", MIG)
        nearest = min(models, key=lambda member: abs(member.scores[MIG].value - level))
        return draw_latents(make, {format_title(nearest, MIG): results.load_evaluation(nearest)})

    what = f"a MIG within {MAX_DISTANCE} of {level}"
    near = exists("beta-tcvae", MIG, lambda mig: np.abs(mig - level) < MAX_DISTANCE, what)
    tested = f"We test whether such a model exists, within {MAX_DISTANCE} (ours)."
    experiment.add(
        name,
        f"Latents against factors, of the beta-TCVAE with a MIG nearest to {level:g}.",
        draw,
        **build_facts(series={"beta-tcvae": TCVAE}, scores=(MIG,)),
        claims={f"there are beta-TCVAEs with a MIG near {level}": near},
        notes=(SPRITES, SHOWN, f"The paper says of this model: {remark}. {tested}"),
    )


add_level("chen2018/figS6", 0.0, "extremely entangled")
add_level("chen2018/figS7", 0.1, "less entangled, but not aligned with its axes")
add_level("chen2018/figS8", 0.2, "still entangled, but some form is appearing")
add_level("chen2018/figS9", 0.3, "much more disentangled, with some nuances that are not")
add_level("chen2018/figS10", 0.4, "aligned with its axes, but rotation is entangled and position not perfect")
add_level("chen2018/figS11", 0.5, "aligned with its axes and disentangled")
