"""Base class of models with a flow as density, and the dequantisation of pixels for it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import Model, run_encoder
from unbraid.networks import Likelihood
from unbraid.networks.coupling_flow import CouplingFlow, flow
from unbraid.networks.likelihoods import GaussianLikelihood

DEQUANTISE, BASE = "dequantise", "base"
"""Names of the noise that makes pixels continuous, and of the noise at the flow's base."""

SHARE_OF_MEAN_VARIANCE = 0.1
"""`pad_variance` adds this share of the mean variance to each variance."""


class FlowModel(Model):
    """An encoder from a condition to features, and a flow of values given these features."""

    decoders = flow
    has_density = True
    step: Tensor

    def set_networks(self, encoder: nn.Module, decoder: CouplingFlow, likelihood: Likelihood, features: int) -> None:
        """Store the networks; raise a `UsageError` for a likelihood other than the default."""
        if not isinstance(likelihood, GaussianLikelihood):
            raise UsageError("A flow is a density itself and takes no other likelihood; leave likelihood=gaussian.")
        self.encoder, self.flow, self.likelihood, self.features = encoder, decoder, likelihood, features
        self.register_buffer("step", torch.zeros(1))  # between two levels of a pixel; 0 for floats

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        if settings["features"] < 1:
            raise UsageError(f"features must be at least 1, not {settings['features']}.")

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        return {"features": settings["features"]}, settings["features"]

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return {}

    def encode_features(self, condition: Tensor) -> Tensor:
        """Return the features [rows, features] of conditions [rows, *shape]."""
        return run_encoder(self.encoder, condition, self.features)

    def to_level_density(self, log_density: Tensor, size: int) -> Tensor:
        """Turn log densities of `size` continuous values into log probabilities of levels, if pixels have levels."""
        return log_density + size * torch.where(self.step > 0, self.step, 1.0).log()

    def to_pixels(self, values: Tensor) -> dict[str, Tensor]:
        """Return likelihood parameters of continuous values [batch, size]: the inverse of `dequantise` at u = 1/2."""
        return self.likelihood(((values - 0.5 * self.step) / (1 - self.step)).unflatten(1, self.shape))


def pad_variance(variance: Tensor) -> Tensor:
    """Return the squared scale of values in front of a flow, from their variances [..., size].

    Without the padding, a pixel that hardly ever varies would be 100 deviations away when it does.
    """
    return variance + SHARE_OF_MEAN_VARIANCE * variance.mean(-1, keepdim=True)


def level_step(dataset: FactorDataset) -> float:
    """Return the step between two levels of a continuous pixel; 0 for floats."""
    if dataset.pixels.bits:
        return 1 / 2
    return 1 / 256 if dataset.pixels.stored.dtype == torch.uint8 else 0.0


def dequantise(x: Tensor, uniform: Tensor, step: Tensor | float) -> Tensor:
    """Turn pixels level / (levels - 1) into continuous values (level + u) / levels."""
    return x * (1 - step) + step * uniform
