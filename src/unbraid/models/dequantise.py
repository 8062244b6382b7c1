"""Models whose density is that of a flow on continuous values, and how pixels become such values and values pixels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import Model
from unbraid.networks import Likelihood
from unbraid.networks.coupling_flow import CouplingFlow, flow
from unbraid.networks.likelihoods import Gaussian
from unbraid.types import Output

DEQUANTISE, BASE, FLOW = "dequantise", "base", "flow"
"""Noise that makes pixels continuous, noise at the flow's base, and the name of the flow's density."""

SHARE = 0.1
"""Of the mean variance of all values, in what each of them is divided by."""


class FlowDensity(Model):
    """An encoder makes features of a condition, and a flow with these features has the density of values."""

    decoders = flow
    step: Tensor

    def keep(self, encoder: nn.Module, decoder: CouplingFlow, likelihood: Likelihood, features: int) -> None:
        """Keep the networks; refuses a likelihood, which there is no place for."""
        if not isinstance(likelihood, Gaussian):
            raise UsageError("A flow's density is its own, and what it makes are values: leave likelihood=gaussian.")
        self.encoder, self.flow, self.likelihood, self.features = encoder, decoder, likelihood, features
        self.register_buffer("step", torch.zeros(1))  # between two levels of a pixel; 0 where there are no levels

    @classmethod
    def ports(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder gives what the flow takes for its condition."""
        features = settings["features"]
        if features < 1:
            raise UsageError(f"features must be at least 1, not {features}.")
        return {"features": features}, features

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """None: the density of observations is the flow's."""
        return {}

    def told(self, densities: Mapping[str, Tensor], size: int) -> Output:
        """Log densities of `size` continuous values by name, per level where pixels have levels; nothing else."""
        per_level = size * torch.where(self.step > 0, self.step, 1.0).log()
        return Output({}, {}, {}, {"x": {name: density + per_level for name, density in densities.items()}})

    def pixels(self, values: Tensor) -> dict[str, Tensor]:
        """What continuous values [batch, size] mean as observations: the inverse of `continuous` at u = 1/2."""
        return self.likelihood(((values - 0.5 * self.step) / (1 - self.step)).unflatten(1, self.shape))


def levels_apart(dataset: FactorDataset) -> float:
    """The step between two levels of a pixel once it is continuous; 0 for floats."""
    if dataset.pixels.bits:
        return 1 / 2
    return 1 / 256 if dataset.pixels.stored.dtype == torch.uint8 else 0.0


def continuous(x: Tensor, uniform: Tensor, step: Tensor | float) -> Tensor:
    """(level + u) / levels of pixels that are level / (levels - 1)."""
    return x * (1 - step) + step * uniform
