"""The settings of `unbraid demo`, as data: what a newcomer trains first.

The decoder decides more than the weights do: with a fully connected one the same data rarely come apart, while one
small MLP per pixel (`broadcast-pixel`) sees positions as positions. A batch of 256 gives the estimate of the total
correlation enough components to tell axes from diagonals, and a large rate that decays turns the code quickly and then
lets it settle.
"""

from typing import Any

NOTE = "Training a beta-TCVAE on 1,536 rendered squares (size 6, x 16, y 16); this takes a minute or two on 2 cores."

SETTINGS: dict[str, Any] = {
    "recipe": "beta-tcvae",
    "data": "sprites-small",
    "beta": 25,
    "z": 6,
    "encoder": "mlp",
    "encoder_hidden": (64, 64),
    "decoder": "broadcast-pixel",
    "decoder_channels": 16,
    "steps": 2000,
    "batch": 256,
    "lr": 5e-3,
    "decay": "cosine",
}
