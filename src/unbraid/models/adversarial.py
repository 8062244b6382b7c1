"""Base class of models with a generator and a critic; they have no density of observations.

The likelihood only turns the decoder's output into observations (logits into pixels, or values). BatchNorms of a critic
keep statistics of real and generated observations together. A generator runs twice in a step, before and after its
update, and both runs count for the statistics of its BatchNorms.
"""

from typing import Any

from unbraid.models.base import Model
from unbraid.networks import Likelihood
from unbraid.noise import Need

REAL_NOISE, GENERATED_NOISE = "blur/real", "blur/generated"
"""Names of the noise that an objective may add to real and to generated observations."""


class AdversarialModel(Model):
    """A generator with a likelihood, and a critic."""

    generator: Any

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return self.generator.likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        return {}

    def instance_noise_needs(self, batch: int) -> dict[str, Need]:
        """Return the noise that an objective may add to observations."""
        return dict.fromkeys((REAL_NOISE, GENERATED_NOISE), Need("normal", (batch, *self.shape)))
