"""What models with a generator and a critic share: they have no density of observations.

The likelihood only says what the decoder's output means (logits of pixels, or values). Where a critic has BatchNorm,
the statistics that scores use are those of real and generated observations together. A generator runs twice in a step,
before and after it moves, and both count for the running statistics of its BatchNorms.
"""

from typing import Any

from unbraid.models.base import Model
from unbraid.networks import Likelihood
from unbraid.noise import Need

REAL_NOISE, GENERATED_NOISE = "blur/real", "blur/generated"
"""Names of the noise that an objective may add to real and to generated observations."""


class AdversarialModel(Model):
    """A generator, whose likelihood gives the decoder's output a meaning, and a critic."""

    generator: Any

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """The generator's, without a density to train on."""
        return self.generator.likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """Empty: p(x|z) is not defined."""
        return {}

    def instance_noise_needs(self, batch: int) -> dict[str, Need]:
        """Return the noise that an objective may add to observations."""
        return dict.fromkeys((REAL_NOISE, GENERATED_NOISE), Need("normal", (batch, *self.shape)))
