"""The settings of `unbraid demo`.

The decoder matters more than the weights: a fully connected one rarely separates position from size, while one small
MLP per pixel (`broadcast-pixel`) takes positions as inputs. A batch of 256 gives the estimate of the total correlation
enough components to tell axes from diagonals. A large learning rate that decays turns the code quickly, then settles.
"""

from typing import Any

NOTE = "Training a beta-TCVAE on 1,536 rendered squares (size 6, x 16, y 16); this takes a minute or two on 2 cores."

MAX_KB_OF_PAGE = 300
"""Size of the explorer's page; most of it are the encoder's 330,000 weights."""

SETTINGS: dict[str, Any] = {
    "recipe": "beta-tcvae",
    "data": "sprites-small",
    "beta": 25,
    "z": 6,
    "encoder": "mlp",
    "decoder": "broadcast-pixel",
    "decoder_channels": 16,
    "steps": 2000,
    "batch": 256,
    "lr": 5e-3,
    "decay": "cosine",
}
