"""Quantised variables (hsu2023): each coordinate takes one of a few learned values.

A posterior is a point without a density. Its flat parameters are the encoder's continuous output and the nearest
values (`unbraid.methods.qlae` finds them). A draw is the nearest value with the gradient of the continuous one.
"""

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block, block
from unbraid.noise import Need


@block("quantised")
class Quantised(Block):
    """Coordinates with `values` learned values each; an encoder gives a continuous number for each."""

    closed_form = False
    has_density = False

    def __init__(self, *, size: int = 10, values: int = 10) -> None:
        if size < 1 or values < 2:
            raise UsageError(f"A quantised block needs at least 1 variable of 2 values, not {size} of {values}.")
        self.width = self.leaves = size
        self.values = values
        self.parameters = {"continuous": size}

    def need(self, batch: int) -> Need:
        return Need("uniform", (batch, 0))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        continuous, nearest = parameters.chunk(2, dim=-1)
        return nearest.detach() + (continuous - continuous.detach())

    def center(self, parameters: Tensor) -> Tensor:
        return parameters[..., self.width :]

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        raise UsageError("Quantised latents are points without a density, so this cannot be computed for them.")

    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        return self.log_density(posterior, value)

    def standard(self, like: Tensor) -> Tensor:
        return self.log_density(like, like)
