r"""A generator and a critic that also reads the codes back (InfoGAN, chen2016).

    generator   codes c ~ p(c) and noise e ~ p(e) to an observation G(c, e)
    critic      an observation to D(x), the logit of "this one is real", and to the parameters of Q(c|x)

The codes are the latent space; Q(c|x) stands where a VAE has its posterior. There is no density of observations, so
the likelihood only says what the decoder's output means (logits of pixels, or values). Where a critic has BatchNorm,
the statistics that scores use are those of real and generated observations together. A generator runs twice in a step,
before and after it moves, and both count for the running statistics of its BatchNorms.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import Model, full_precision, model, observations
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape

Draws = Literal["uniform", "normal"]

NOISE = "noise"
REAL_BLUR, GENERATED_BLUR = "blur/real", "blur/generated"
GENERATED = "generated"


class Generator(nn.Module):
    """Standard normal codes and noise to observations.

    With uniform draws the decoder sees erf(c / sqrt 2) in place of c, which is uniform on (-1, 1) where c is standard
    normal: one latent space, one entropy and the same mutual information for both.
    """

    def __init__(self, decoder: nn.Module, likelihood: Likelihood, shape: Shape, draws: Draws) -> None:
        super().__init__()
        self.decoder = decoder
        self.likelihood = likelihood
        self.shape, self.draws = shape, draws

    def forward(self, code: Tensor, noise: Tensor) -> Tensor:
        """Observations [batch, *shape] of codes and noise."""
        return self.likelihood.mean(self.decoded(torch.cat([code, noise], -1)))

    def decoded(self, code: Tensor) -> dict[str, Tensor]:
        """What the likelihood makes of the decoder's output for codes with their noise behind them."""
        seen = torch.erf(code / math.sqrt(2)) if self.draws == "uniform" else code
        return self.likelihood(observations(self.decoder, self.shape, seen))


class Critic(nn.Module):
    """D and Q: one network whose last output is the logit of "real", and the others the parameters of Q(c|x)."""

    def __init__(self, encoder: nn.Module, space: Space) -> None:
        super().__init__()
        self.encoder = encoder
        self.space = space

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [batch] and Q's parameters by block."""
        flat = full_precision(self.encoder(x))
        wanted = sum(self.space.outputs.values()) + 1
        if flat.ndim != 2 or flat.shape[1] != wanted:
            raise UsageError(
                f"The encoder of an adversarial model must return [batch, {wanted}], what it reads of the codes and "
                f"one logit behind it, not {tuple(flat.shape)}."
            )
        return flat[:, -1], self.space.split(flat[:, :-1])


@model("adversarial", year=2016, reference="chen2016")
class Adversarial(Model):
    """Codes and noise to observations by a generator; a critic judges observations and reads the codes back."""

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: Likelihood,
        *,
        noise: int = 5,
        draws: Draws = "uniform",
    ) -> None:
        super().__init__()
        self.space, self.shape, self.noise = space, shape, noise
        self.generator = Generator(decoder, likelihood, shape, draws)
        self.critic = Critic(encoder, space)

    @classmethod
    def ports(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder gives Q's parameters and one logit more; the decoder takes the codes and the noise."""
        noise = settings["noise"]
        if noise < 0:
            raise UsageError(f"noise must be 0 or above, not {noise}.")
        return {**space.outputs, "real": 1}, space.width + noise

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """What the decoder's output means; it has no density to train on."""
        return self.generator.likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """None: p(x|c) is not defined."""
        return {}

    def needs(self, batch: int) -> dict[str, Need]:
        """Codes and noise, and what an objective may blur real and generated observations with."""
        blur = Need("normal", (batch, *self.shape))
        return {**self.prior_needs(batch), REAL_BLUR: blur, GENERATED_BLUR: blur}

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Draw codes and generate; the critic is asked by the objective, which blurs what it sees."""
        prior = self.space.prior(like=x["x"])
        codes = self.space.sample(prior, noise)
        return Output({}, prior, codes, {"x": {GENERATED: self.generator(self.space.join(codes), noise[NOISE])}})

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """Parameters of Q(c|x) by block."""
        return self.critic(x)[1]

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """The decoder's output for codes [batch, width] with the noise at 0, its middle, or with noise behind them."""
        missing = self.space.width + self.noise - code.shape[-1]
        return self.generator.decoded(functional.pad(code, (0, missing)))

    def prior_needs(self, count: int) -> dict[str, Need]:
        """Noise that `prior_codes` consumes."""
        return {**self.space.needs(count), NOISE: Need("normal", (count, self.noise))}

    def prior_codes(self, noise: Noise) -> Tensor:
        """Codes with their noise behind them, [count, width + noise]."""
        return torch.cat([super().prior_codes(noise), noise[NOISE]], -1)
