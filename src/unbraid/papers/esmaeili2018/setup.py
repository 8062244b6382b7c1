"""Settings that the experiments of esmaeili2018 share.

The paper: Adam 1e-3, batches of 512 to 1024; on MNIST and Fashion-MNIST 10 Normal latents and a Concrete one of 10
classes, on dSprites of 3; networks of its appendix B. Not in the text, and ours: alpha 1, a temperature of .66, beta 4
and gamma 3 on MNIST, too, and how long to train: 170 epochs of MNIST, 50 of dSprites.
"""

from typing import Any

from unbraid.experiments.base import StandIn
from unbraid.experiments.evidence import Finding, pool_runs
from unbraid.experiments.sprites import STAND_IN, TINY

VAE: dict[str, Any] = {"recipe": "vae"}
BETA_VAE: dict[str, Any] = {"recipe": "beta-vae", "beta": 4}
BETA_SVAE: dict[str, Any] = {"recipe": "beta-svae", "beta": 4}
BETA_TCVAE: dict[str, Any] = {"recipe": "beta-tcvae", "beta": 4, "estimator": "mws"}
HFVAE: dict[str, Any] = {"recipe": "hfvae", "beta": 4, "gamma": 3}

SHAPES = {"latents": "normal:10+concrete:3"}
"""Latents of models with a discrete variable on sprites."""

SMOKE: dict[str, Any] = {**TINY, "steps": 10, "seed": range(2)}
DIGITS: dict[str, Any] = {"network": "mlp-esmaeili-28", "batch": 512}
SMALL_DIGITS: dict[str, Any] = {**DIGITS, "batch": 256, "steps": 3_000, "seed": range(3)}
BUDGET_DIGITS: dict[str, Any] = {**DIGITS, "steps": 20_000, "precision": "tf32", "seed": range(5)}
PAPER_DIGITS: dict[str, Any] = {**DIGITS, "steps": 20_000, "precision": "f32", "seed": range(10)}

MNIST: dict[str, Any] = {"data": "mnist", "data.measured": True}
FASHION: dict[str, Any] = {"data": "fashion-mnist"}

SMALL_SPRITES: dict[str, Any] = {
    "data": "sprites-small",
    "network": "mlp",
    "encoder.hidden": (64, 64),
    "decoder.hidden": (64, 64),
    "batch": 128,
    "steps": 2_000,
    "seed": range(3),
}
BUDGET_SPRITES: dict[str, Any] = {
    "data": "sprites",
    "network": "mlp-esmaeili-64",
    "batch": 512,
    "steps": 10_000,
    "decay": "cosine",
    "precision": "bf16",
    "seed": range(5),
}
PAPER_SPRITES: dict[str, Any] = {
    **BUDGET_SPRITES,
    "data": StandIn("dsprites", "sprites"),
    "steps": 72_000,
    "decay": "none",
    "precision": "f32",
    "seed": range(10),
}

QUICK: dict[str, Any] = {"samples": 20, "steps": 5}
LEARNED: dict[str, Any] = {"steps": 2_000}
"""Settings of scores by a classifier: at scale smoke, and elsewhere, where it tells 97% of the digits."""

SPRITES = STAND_IN
OURS = "beta = 4 and gamma = 3 on MNIST and the number of steps are ours; the text has neither."
TELLS = "A classifier trained on the data's own labels says what a decoded image shows; its accuracy is in each score."


def on(data: dict[str, Any], *series: str) -> dict[str, dict[str, Any]]:
    """The same settings for several series."""
    return dict.fromkeys(series, data)


def mean_of(series: str, score: str, **where: float) -> Finding:
    """The mean of a score over the runs of a series."""
    return pool_runs([series], [score], lambda c: c[..., 0].mean(-1), f"{score}, {series}", **where)


def largest_of(series: tuple[str, ...], score: str, **where: float) -> Finding:
    """The largest value of a score over all runs of some series."""
    return pool_runs(series, [score], lambda c: c[..., 0].max(-1), f"largest {score}", **where)
