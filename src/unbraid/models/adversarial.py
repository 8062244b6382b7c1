"""Base class of models with a generator and a critic; they have no density of observations.

The likelihood only turns the decoder's output into observations (logits into pixels, or values). BatchNorms of a critic
keep statistics of real and generated observations together. A generator runs twice in a step, before and after its
update, and both runs count for the statistics of its BatchNorms.
"""

from abc import abstractmethod

from torch import Tensor, nn

from unbraid.models.base import Model
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Shape

REAL_NOISE, GENERATED_NOISE = "blur/real", "blur/generated"
"""Names of the noise that an objective may add to real and to generated observations."""


class Generator(nn.Module):
    """Observations from codes and whatever else a method gives to its decoder."""

    def __init__(self, decoder: nn.Module, likelihood: Likelihood, shape: Shape) -> None:
        super().__init__()
        self.decoder, self.likelihood, self.shape = decoder, likelihood, shape

    def forward(self, *given: Tensor) -> Tensor:
        """Return observations [batch, *shape]."""
        return self.likelihood.mean(self.decode(*given))

    @abstractmethod
    def decode(self, *given: Tensor) -> dict[str, Tensor]:
        """Return likelihood parameters."""


class AdversarialModel(Model):
    """A generator with a likelihood, and a critic."""

    generator: Generator

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return self.generator.likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return {}

    def instance_noise_needs(self, batch: int) -> dict[str, Need]:
        """Return the noise that an objective may add to observations."""
        return dict.fromkeys((REAL_NOISE, GENERATED_NOISE), Need("normal", (batch, *self.shape)))
