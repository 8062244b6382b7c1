"""The variational autoencoder (kingma2014): one encoder, one latent space, one decoder."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.latents import LEARNED, Space
from unbraid.models.base import Model, encoded, model, observations
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape


@model("vae", year=2014, reference="kingma2014")
class VAE(Model):
    """q(z|x) by the encoder, p(x|z) by the decoder and the likelihood."""

    points = False
    """Whether it takes latents that have no density."""

    def __init__(
        self, space: Space, shape: Shape, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood
    ) -> None:
        super().__init__()
        if not (space.density or self.points):
            raise UsageError("Quantised latents are points, and this objective needs densities; train them with qlae.")
        self.space = space
        self.shape = shape
        self.encoder = encoder
        self.decoder = decoder
        self.likelihood = likelihood
        if space.learned is not None:
            self.prior = nn.ParameterDict(space.learned.start())

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality."""
        return {"x": self.likelihood}

    def needs(self, batch: int) -> dict[str, Need]:
        """Noise that one forward of `batch` rows consumes."""
        return self.space.needs(batch)

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, sample, decode."""
        posterior = self.encode(x["x"], noise)
        prior = self.prior_of(posterior)
        sample = self.space.sample(posterior, noise)
        return Output(posterior, prior, sample, {"x": self.decode(self.space.join(sample))})

    def learned_prior(self) -> dict[str, Tensor]:
        """The parameters of a learned prior, flat; nothing where the prior is the standard one."""
        if self.space.learned is None:
            return {}
        return {LEARNED: torch.cat([self.prior[name].flatten() for name in self.space.learned.shapes])}

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Posterior parameters by block; densities stay in float32 whatever the networks compute in."""
        return self.space.split(encoded(self.encoder, x, sum(self.space.outputs.values())), noise)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of a code."""
        return self.likelihood(observations(self.decoder, self.shape, code))
