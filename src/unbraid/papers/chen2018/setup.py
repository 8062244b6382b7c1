"""Settings of chen2018 at each scale, what is measured, and what its experiments have in common.

Setup of the paper on dSprites: fully connected networks, Adam 1e-3, batch 2048; 10 latents and 50 epochs (18,000 steps)
are the authors' defaults. The values of beta and the number of seeds (40, from figure 4) stand where the text has none.
Shape is noise when MIG is measured; `mig/exact` is what the paper's Monte Carlo protocol estimates.
"""

from collections.abc import Mapping
from typing import Any

from unbraid.experiments.base import Scale, StandIn
from unbraid.experiments.sprites import STAND_IN, TINY
from unbraid.metrics import Score, restricted

MIG, ELBO, TC = "mig/exact without shape", "elbo/closed-form", "tc/exact"
METRICS = ("mig/exact", "elbo", "tc/exact")
FACTORS = ("scale", "orientation", "posX", "posY")
BETAS = [1, 2, 4, 6, 8, 10]

SMOKE: dict[str, Any] = {**TINY, "steps": 20}
SMALL: dict[str, Any] = {
    "data": "sprites-small",
    "network": "mlp",
    "encoder.hidden": (64, 64),
    "decoder.hidden": (64, 64),
    "z": 6,
    "batch": 128,
    "steps": 2000,
    "lr": 2e-3,
}
BUDGET: dict[str, Any] = {
    "data": "sprites",
    "network": "mlp-chen",
    "batch": 2048,
    "steps": 18_000,
    "precision": "bf16",
}
PAPER: dict[str, Any] = {**BUDGET, "data": StandIn("dsprites", "sprites"), "precision": "f32"}

OVER_BETA = {
    "smoke": Scale({**SMOKE, "beta": [1, 4], "seed": range(2)}),
    "small": Scale({**SMALL, "beta": [1, 2, 4, 8], "seed": range(3)}),
    "budget": Scale({**BUDGET, "beta": BETAS, "seed": range(7)}),
    "paper": Scale({**PAPER, "beta": BETAS, "seed": range(40)}),
}
VARIANTS = {**OVER_BETA, "budget": Scale({**BUDGET, "beta": BETAS, "seed": range(3)})}
"""Of series that stand beside beta-TCVAE, which the study of figures 2 and 4 has already."""

BOTH = ("beta-vae", "beta-tcvae")
VAE, TCVAE = {"recipe": "beta-vae"}, {"recipe": "beta-tcvae", "estimator": "mws"}
SPRITES = STAND_IN


def without_shape(scores: Mapping[str, Score]) -> Score:
    """MIG over all factors but the shape, which the paper treats as noise."""
    score = scores["mig/exact"]
    return restricted(score, [name for name in score.details["gaps"] if name != "shape"])
