"""The variational autoencoder (kingma2014): one encoder, one latent space, one decoder."""

from collections.abc import Mapping

from torch import Tensor, nn

from unbraid.latents import Space
from unbraid.models.base import Model, model
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape


@model("vae", year=2014, reference="kingma2014")
class VAE(Model):
    """q(z|x) by the encoder, p(x|z) by the decoder and the likelihood."""

    def __init__(
        self, space: Space, shape: Shape, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood
    ) -> None:
        super().__init__()
        self.space = space
        self.shape = shape
        self.encoder = encoder
        self.decoder = decoder
        self.likelihood = likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """Likelihood of each modality."""
        return {"x": self.likelihood}

    def needs(self, batch: int) -> dict[str, Need]:
        """Noise that one forward of `batch` rows consumes."""
        return self.space.needs(batch)

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, sample, decode."""
        posterior = self.encode(x["x"])
        prior = self.space.prior(like=next(iter(posterior.values())))
        sample = self.space.sample(posterior, noise)
        return Output(posterior, prior, sample, {"x": self.decode(self.space.join(sample))})

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """Posterior parameters by block; densities stay in float32 whatever the networks compute in."""
        return self.space.split(self.encoder(x).float())

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of a code."""
        return self.likelihood(self.decoder(code).float())
