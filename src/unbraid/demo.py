"""The settings of `unbraid demo`, as data: what a newcomer trains first."""

from typing import Any

NOTE = "Training a beta-TCVAE on 1,536 rendered squares (size 6, x 16, y 16); this takes a minute or two on 2 cores."

SETTINGS: dict[str, Any] = {
    "recipe": "beta-tcvae",
    "data": "sprites-small",
    "beta": 6,
    "z": 6,
    "encoder": "mlp",
    "decoder": "broadcast-pixel",
    "steps": 2000,
    "batch": 64,
    "lr": 1e-3,
}
