"""The variational autoencoder (kingma2014): one encoder, one latent space, one decoder."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.latents import LEARNED_PRIOR, Space
from unbraid.models.base import Model, model, run_decoder, run_encoder
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Inputs, Noise, Output, Shape


@model("vae", reference="kingma2014")
class VAE(Model):
    """q(z|x) by the encoder, p(x|z) by the decoder and the likelihood."""

    takes_points: ClassVar[bool] = False  # latents need no density

    def __init__(
        self, space: Space, shape: Shape, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood
    ) -> None:
        super().__init__()
        if not (space.has_density or self.takes_points):
            raise UsageError("Quantised latents have no density, and this objective needs one; train them with qlae.")
        self.space, self.shape = space, shape
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood
        if space.learned is not None:
            self.prior = nn.ParameterDict(space.learned.initial_parameters())

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return {"x": self.likelihood}

    def needs(self, batch: int) -> dict[str, Need]:
        return self.space.needs(batch)

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        return self.sample_and_decode(self.encode(inputs, noise), noise)

    def sample_and_decode(self, posterior: dict[str, Tensor], noise: Noise) -> Output:
        """Draw from posteriors and decode the draws."""
        sample = self.space.sample(posterior, noise)
        decoded = {"x": self.decode(self.space.join(sample))}
        return Output(posterior, self.prior_of(posterior), sample, decoded)

    def learned_prior(self) -> dict[str, Tensor]:
        if self.space.learned is None:
            return {}
        return {LEARNED_PRIOR: torch.cat([self.prior[name].flatten() for name in self.space.learned.shapes])}

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        return self.space.split(run_encoder(self.encoder, inputs.x["x"], sum(self.space.outputs.values())), noise)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        return self.likelihood(run_decoder(self.decoder, self.shape, code))
