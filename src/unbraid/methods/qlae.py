r"""QLAE, disentanglement by latent quantisation and weight decay (hsu2023): each latent takes a few learned values.

With the encoder's output c, the nearest learned values q, the code z = q + c - sg[c] (sg stops a gradient), P numbers
in an observation and D latents,

    encoder, decoder   -E[log p(x|z)] + beta_commit P/D E|c - sg[q]|^2
    codebook            beta_quantise P/D E|sg[c] - q|^2

hsu2023 takes means over pixels and over latents; this library sums, and P/D gives the weights the same meaning. Each
line has its own optimizer. That of encoder and decoder (AdamW, loshchilov2019) pulls weights, not biases, towards 0 at
`weight_decay` times the learning rate; the codebook has no decay. No other loss reaches the codebook and Adam ignores a
loss's scale, so beta_quantise hardly matters.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Quantised, Space
from unbraid.models.base import model
from unbraid.models.vae import VAE
from unbraid.noise import Need
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import reconstruction
from unbraid.types import Batch, Inputs, Noise, Output, Player, Terms, Weight


class Codebook(nn.Module):
    """Learned values [latents, values] of each latent, evenly spaced in [-1/2, 1/2] at first."""

    def __init__(self, latents: int, values: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-0.5, 0.5, values).repeat(latents, 1))

    def forward(self, continuous: Tensor) -> Tensor:
        """Return the value nearest to each number [..., latents]; differentiable in the values."""
        return self._at((continuous.unsqueeze(-1) - self.values).abs().argmin(-1, keepdim=True))

    def draw(self, uniform: Tensor) -> Tensor:
        """Draw one of the values of each latent, all equally likely, from uniform numbers [..., latents]."""
        count = self.values.shape[-1]
        return self._at((uniform * count).long().clamp(max=count - 1).unsqueeze(-1))

    def _at(self, position: Tensor) -> Tensor:
        # A masked sum instead of a gather, whose gradient is added up in random order on a GPU.
        chosen = position == torch.arange(self.values.shape[-1], device=position.device)
        return torch.where(chosen, self.values, 0.0).sum(-1)


@model("qlae", reference="hsu2023")
class QuantisedAutoencoder(VAE):
    """An autoencoder whose latents are rounded to the nearest of their learned values; there is no prior."""

    takes_points = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        blocks = {name: block for name, block in self.space.blocks.items() if isinstance(block, Quantised)}
        self.codebooks = nn.ModuleDict({name: Codebook(b.leaves, b.values) for name, b in blocks.items()})

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return the encoder's output and the nearest values, by block."""
        flat = super().infer(inputs, noise)
        return {name: torch.cat([part, self.codebooks[name](part)], -1) for name, part in flat.items()}

    def prior_of(self, posterior: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def prior_needs(self, count: int) -> dict[str, Need]:
        return {name: Need("uniform", (count, block.width)) for name, block in self.space.blocks.items()}

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draw combinations of values, all equally likely."""
        return torch.cat([self.codebooks[name].draw(noise[name]) for name in self.space.blocks], -1)  # type: ignore


@objective("qlae", model="qlae", reference="hsu2023", defaults={"latents": "quantised"})
class QLAE(Objective):
    """QLAE: an autoencoder with few values per latent and strong weight decay, E[log p(x|z)] - beta_commit |c - q|^2.

    hsu2023 has twice as many latents as factors, with 10 values each (`z=10`, `latents.z.values=10`).
    """

    def __init__(self, *, beta_quantise: Weight = 0.01, beta_commit: Weight = 0.01, weight_decay: float = 0.1) -> None:
        if not weight_decay >= 0:
            raise UsageError(f"weight_decay must be at least 0, not {weight_decay}.")
        self.beta_quantise, self.beta_commit, self.weight_decay = beta_quantise, beta_commit, weight_decay

    def players(self) -> list[Player]:
        networks = ("model.encoder.", "model.decoder.", "model.likelihood.")
        return [
            Player("model", networks, self.terms, optimizer={"weight_decay": self.weight_decay}),
            Player("codebook", ("model.codebooks.",), self.codebook_terms),
        ]

    def check(self, dataset: FactorDataset, space: Space) -> None:
        for name, block in space.blocks.items():
            if block.has_density:
                raise UsageError(f"qlae needs quantised latents, and {name!r} is not: use latents=quantised:10.")

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        pairs = [flat.chunk(2, -1) for flat in out.posterior.values()]
        distance = _sum([(continuous - nearest.detach()).square() for continuous, nearest in pairs])
        terms = {
            "reconstruction": (reconstruction(out, batch, context), 1.0),
            "commitment": (distance, self.beta_commit * _numbers_per_latent(batch, context.space)),
        }
        return Terms(terms)

    def codebook_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        distances = []
        for name, flat in out.posterior.items():
            continuous = flat.chunk(2, -1)[0].detach()
            distances.append((continuous - context.apply(f"model.codebooks.{name}", continuous)).square())
        scale = _numbers_per_latent(batch, context.space)
        return Terms({"quantisation": (_sum(distances), self.beta_quantise * scale)})


def _sum(parts: list[Tensor]) -> Tensor:
    """Return the sum over latents, mean over the batch [member]."""
    return sum((part.sum(-1).mean(-1) for part in parts[1:]), parts[0].sum(-1).mean(-1))


def _numbers_per_latent(batch: Batch, space: Space) -> float:
    return math.prod(batch.x["x"].shape[2:]) / space.leaves
