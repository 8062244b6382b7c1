"""Latents against factors of chosen models: chen2018's figure S4 (the best) and figures S6 to S11 (by their MIG)."""

from typing import Any

import numpy as np

from unbraid.experiments.base import Claim, Results, experiment
from unbraid.experiments.drawing import draw_latents, format_title
from unbraid.experiments.evidence import Finding, find_one, group_series
from unbraid.experiments.statistics import Cells
from unbraid.papers.chen2018.setup import BOTH, MIG, SPRITES, TCVAE, VAE, build_facts

MAX_DISTANCE = 0.05
"""Distance from a value of MIG up to which a model is near it."""

SHOWN = "Lines are means over all other factors, bands one standard deviation. Latents below .05 nats are left out."


def pool_scores(cells: Cells) -> np.ndarray:
    """Return the scores [..., run] of all cells."""
    return np.concatenate([rows[..., 0] for rows in cells.values()], -1)


def best_gap(cells: Cells) -> np.ndarray:
    """Return the highest MIG of beta-TCVAE minus that of beta-VAE."""
    best = [pool_scores({k: rows for k, rows in cells.items() if k[0] == name}).max(-1) for name in BOTH]
    return best[1] - best[0]


COMPARE_BEST = find_one(
    "highest MIG of all runs, beta-tcvae minus beta-vae",
    lambda results: group_series(results, BOTH, "beta", MIG, common=False),
    best_gap,
    low=0.0,
)


@experiment(
    "chen2018/figS4",
    **build_facts("figure S4"),
    series={"beta-vae": VAE, "beta-tcvae": TCVAE},
    scores=(MIG,),
    claims=(Claim("the best beta-TCVAE has a higher MIG than the best beta-VAE", COMPARE_BEST),),
    notes=(SPRITES, SHOWN, "The claim is our reading of the figure; the text states none."),
)
def fig_s4(results: Results, make: Any) -> Any:
    """Latents against factors, of the best beta-TCVAE and the best beta-VAE."""
    best = [results.select_best(name, MIG) for name in reversed(BOTH)]
    return draw_latents(make, {format_title(member, MIG): results.load_evaluation(member) for member in best})


LEVELS = {
    "S6": (0.0, "extremely entangled"),
    "S7": (0.1, "less entangled, but not aligned with its axes"),
    "S8": (0.2, "still entangled, but some form is appearing"),
    "S9": (0.3, "much more disentangled, with some nuances that are not"),
    "S10": (0.4, "aligned with its axes, but rotation is entangled and position not perfect"),
    "S11": (0.5, "aligned with its axes and disentangled"),
}
"""MIG of the model in each figure, and the paper's remark about it."""


def find_distance(level: float) -> Finding:
    """Find the distance of the nearest model from a value of MIG."""
    return find_one(
        f"distance of the nearest MIG from {level}",
        lambda results: results.group_scores("beta-tcvae", "beta", MIG),
        lambda c: np.abs(pool_scores(c) - level).min(-1),
        high=MAX_DISTANCE,
    )


def register(figure: str, level: float, remark: str) -> None:
    """Register the figure of the beta-TCVAE whose MIG is nearest to `level`."""

    def draw(results: Results, make: Any) -> Any:
        models = results.select_members("beta-tcvae", MIG)
        nearest = min(models, key=lambda member: abs(member.scores[MIG].value - level))
        return draw_latents(make, {format_title(nearest, MIG): results.load_evaluation(nearest)})

    draw.__doc__ = f"Latents against factors, of the beta-TCVAE with a MIG nearest to {level:g}."
    note = f"The paper says of this model: {remark}. We test whether such a model exists, within {MAX_DISTANCE} (ours)."
    experiment(
        f"chen2018/fig{figure}",
        **build_facts(f"figure {figure}"),
        series={"beta-tcvae": TCVAE},
        scores=(MIG,),
        claims=(Claim(f"there are beta-TCVAEs with a MIG near {level}", find_distance(level)),),
        notes=(SPRITES, SHOWN, note),
    )(draw)


for _figure, (_level, _remark) in LEVELS.items():
    register(_figure, _level, _remark)
