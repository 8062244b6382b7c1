"""Quantised variables (hsu2023): each coordinate is one of a few numbers that the model learns.

A posterior is a point. Its flat parameters are the encoder's continuous output and, beside it, the values that are
nearest to it (`unbraid.methods.qlae` holds those); the draw is the nearest value with the gradient of the
continuous one (straight through). There is no density, so nothing that needs one can be computed.
"""

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Block, block
from unbraid.noise import Need


@block("quantised")
class Quantised(Block):
    """Coordinates that take one of `values` learned numbers each; the parameter is a continuous one."""

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
        """Return the nearest values, exactly, with the continuous ones' gradient."""
        continuous, nearest = parameters.chunk(2, dim=-1)
        return nearest.detach() + (continuous - continuous.detach())

    def center(self, parameters: Tensor) -> Tensor:
        """Return the nearest values."""
        return parameters[..., self.width :]

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        raise no_density()

    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        raise no_density()

    def standard(self, like: Tensor) -> Tensor:
        raise no_density()


def no_density() -> UsageError:
    """Return the error for computations that need a density."""
    return UsageError("Quantised latents are points without a density, so this cannot be computed for them.")
