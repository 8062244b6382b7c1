"""Settings that the experiments of esmaeili2018 share.

The paper has Adam 1e-3, batches of 512 to 1024, 10 Normal latents, a Concrete one of 10 classes on MNIST and
Fashion-MNIST and of 3 on dSprites, and the networks of its appendix B. The text does not give, and we choose: alpha 1,
a temperature of .66, beta 4 and gamma 3 also on MNIST, and 170 epochs of MNIST and 50 of dSprites.
"""

from typing import Any

from unbraid.experiments.base import Scale
from unbraid.experiments.sprites import SMALL_MLP, TINY
from unbraid.experiments.stand_in import StandIn

VAE: dict[str, Any] = {"recipe": "vae"}
BETA_VAE: dict[str, Any] = {"recipe": "beta-vae", "beta": 4}
BETA_SVAE: dict[str, Any] = {"recipe": "beta-svae", "beta": 4}
BETA_TCVAE: dict[str, Any] = {"recipe": "beta-tcvae", "beta": 4, "estimator": "mws"}
HFVAE: dict[str, Any] = {"recipe": "hfvae", "beta": 4, "gamma": 3}

SHAPES = {"latents": "normal:10+concrete:3"}
"""Latents on sprites of models with a discrete variable."""

SMOKE: dict[str, Any] = {**TINY, "steps": 5, "seed": range(1)}
MLP = {"network": "mlp-esmaeili-28"}
DIGITS: dict[str, dict[str, Any]] = {
    "small": {**MLP, "batch": 256, "steps": 1_500, "seed": range(3)},
    "budget": {**MLP, "batch": 512, "steps": 20_000, "precision": "tf32", "seed": range(10)},
    "paper": {**MLP, "batch": 512, "steps": 20_000, "precision": "f32", "seed": range(10)},
}
"""Settings by scale on MNIST and Fashion-MNIST."""

MNIST: dict[str, Any] = {"data": "mnist", "data.measured": True}
FASHION: dict[str, Any] = {"data": "fashion-mnist"}

FULL: dict[str, Any] = {"data": "sprites", "network": "mlp-esmaeili-64", "batch": 512}
SPRITES: dict[str, dict[str, Any]] = {
    "small": {**SMALL_MLP, "data": "sprites-small", "batch": 128, "steps": 2_000, "seed": range(3)},
    "budget": {**FULL, "steps": 20_000, "decay": "cosine", "precision": "bf16", "seed": range(10)},
    "paper": {**FULL, "steps": 72_000, "decay": "none", "precision": "f32", "seed": range(10)}
    | {"data": StandIn("dsprites", "sprites")},
}
"""Settings by scale on sprites."""

QUICK: dict[str, Any] = {"samples": 20, "steps": 5}
LEARNED: dict[str, Any] = {"steps": 2_000}
"""Settings of scores by a classifier: at scale smoke, and elsewhere, where it recognises 97% of the digits."""

OURS = "beta = 4 and gamma = 3 on MNIST and the number of steps are ours; the text gives neither."
CLASSIFIER = (
    "A classifier trained on the labels of the data names the class of a decoded image; each score has its accuracy."
)


def assign(settings: dict[str, Any], *series: str) -> dict[str, dict[str, Any]]:
    """Return the same settings for several series."""
    return dict.fromkeys(series, settings)


def build_digit_scales(
    smoke: Scale,
    per_series: dict[str, dict[str, Any]],
    measures: dict[str, tuple[str, dict[str, Any]]],
    seeds_at_budget: int = 10,
) -> dict[str, Scale]:
    """Return `smoke`, and the three other scales on MNIST and Fashion-MNIST."""
    settings = {**DIGITS, "budget": {**DIGITS["budget"], "seed": range(seeds_at_budget)}}
    return {"smoke": smoke, **{scale: Scale(each, per_series, measures) for scale, each in settings.items()}}
