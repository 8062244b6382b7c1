"""The quantised-latent autoencoder (hsu2023): each latent is rounded to the nearest of its own learned values."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unbraid.latents import Quantised, Space
from unbraid.models.base import model
from unbraid.models.vae import VAE
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape


class Codebook(nn.Module):
    """Learned values [latents, values] of each latent, evenly spaced in [-1/2, 1/2] at first."""

    def __init__(self, latents: int, values: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-0.5, 0.5, values).repeat(latents, 1))

    def forward(self, continuous: Tensor) -> Tensor:
        """The value nearest to each number [..., latents]; differentiable in the values."""
        nearest = (continuous.unsqueeze(-1) - self.values).abs().argmin(-1, keepdim=True)
        return self._at(nearest)

    def spread(self, uniform: Tensor) -> Tensor:
        """One of the values of each latent, all equally likely, from uniform numbers [..., latents]."""
        count = self.values.shape[-1]
        return self._at((uniform * count).long().clamp(max=count - 1).unsqueeze(-1))

    def _at(self, position: Tensor) -> Tensor:
        # A masked sum and no gather: the gradient of a gather is added up in random order on a GPU.
        chosen = position == torch.arange(self.values.shape[-1], device=position.device)
        return torch.where(chosen, self.values, 0.0).sum(-1)


@model("qlae", year=2023, reference="hsu2023")
class QuantisedAutoencoder(VAE):
    """An autoencoder whose latents take one of a few learned values each."""

    points = True

    def __init__(
        self, space: Space, shape: Shape, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood
    ) -> None:
        super().__init__(space, shape, encoder, decoder, likelihood)
        blocks = {name: block for name, block in space.blocks.items() if isinstance(block, Quantised)}
        self.codebooks = nn.ModuleDict({name: Codebook(b.leaves, b.values) for name, b in blocks.items()})

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, round, decode; there is no prior."""
        posterior = self.encode(x["x"], noise)
        sample = self.space.sample(posterior, noise)
        return Output(posterior, {}, sample, {"x": self.decode(self.space.join(sample))})

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The encoder's output and the nearest values, by block."""
        flat = super().encode(x, noise)
        return {name: torch.cat([part, self.codebooks[name](part)], -1) for name, part in flat.items()}

    def prior_needs(self, count: int) -> dict[str, Need]:
        """A uniform number per latent."""
        return {name: Need("uniform", (count, block.width)) for name, block in self.space.blocks.items()}

    def prior_codes(self, noise: Noise) -> Tensor:
        """Every combination of values is equally likely."""
        return torch.cat([self.codebooks[name].spread(noise[name]) for name in self.space.blocks], -1)  # type: ignore
