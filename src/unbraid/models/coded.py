r"""A second stage that draws from codes and not from y: what msvae2020's ablations put beside the refiner.

    c of the frozen first stage     z ~ q(z|x - y), or q(z|x)     x ~ p(x|c, z) by an ordinary decoder of [c, z]

A decoder of dense and convolutional layers mixes c and z from the start; `conv-modulated` lets z only modulate.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.latents import Space
from unbraid.models.base import Model, encoded, model, observations
from unbraid.models.recentre import Frame
from unbraid.models.staged import Stage
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape


class OfCodes(Stage):
    """A stage whose decoder takes c, and then z."""

    encoder: nn.Module
    decoder: nn.Module

    @classmethod
    def decoder_of(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        """The decoder of a config, which takes c before z."""
        return super().decoder_of(chosen, first[0].space.width + width, shape)

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """That of the second stage."""
        return {"x": self.likelihood}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of codes [c, z]."""
        return self.likelihood(observations(self.decoder, self.shape, code))


@model("coded", year=2020, reference="msvae2020")
class Coded(OfCodes):
    """q(c|x) by a frozen model, q(z|x - y) or q(z|x) by the encoder, p(x|c, z) by a decoder of both codes."""

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: Likelihood,
        first: Model,
        *,
        residual: bool = True,
    ) -> None:
        super().__init__(space, shape, first)
        self.encoder, self.decoder, self.likelihood, self.residual = encoder, decoder, likelihood, residual
        self.frame = Frame(space)

    def needs(self, batch: int) -> dict[str, Need]:
        """What draws of z consume."""
        return self.space.own.needs(batch)

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode by both stages, sample z, decode. Only z's prior is given."""
        posterior, own = self.encode(x["x"], noise), self.space.own
        c = self.space.center(posterior)[..., : -own.width]
        sample = own.sample(posterior, noise)
        decoded = self.decode(torch.cat([c, own.join(sample)], -1))
        return Output(posterior, own.prior_of(posterior), sample, {"x": decoded})

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The first stage's posterior of c, and that of z."""
        earlier, own = self.earlier(x), self.space.own
        seen = x - self.coarse(self.first.space.center(earlier)) if self.residual else x
        flat = encoded(self.encoder, seen, sum(own.outputs.values()))
        return {**self.space.named(earlier), **self.frame.posterior(own.split(flat, noise))}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of codes [c, z]."""
        c, z = self.apart(code)
        return super().decode(torch.cat([c, self.frame.code(z)], -1))
