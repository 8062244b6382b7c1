r"""Conditional GANs behind a frozen first stage: a generator that is told c, or what the first stage draws of it.

    CGAN (mirza2014)       x = G(c, z)                  judged by D(x, c)
    MS-GAN (msvae2020)     x = G(y, z),  y = E p(y|c)   judged by D(x, y)

z ~ p(z) is the generator's noise. Nothing reads it back from an observation, so its posterior is its prior: codes are
[c, z] as of any stage, c is the first stage's, and z says nothing of a row. There is no density of observations.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.latents import Space
from unbraid.models.adversarial import GENERATED, GENERATED_BLUR, REAL_BLUR
from unbraid.models.base import Model, encoded, model, observations
from unbraid.models.staged import CODES, Stage
from unbraid.networks import Likelihood, Outputs, refiner
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape

CONDITION = "condition"


class ConditionalGenerator(nn.Module):
    """Conditions and z to observations, by a network that takes both, or both as one code."""

    def __init__(self, decoder: nn.Module, likelihood: Likelihood, shape: Shape, joined: bool) -> None:
        super().__init__()
        self.decoder, self.likelihood = decoder, likelihood
        self.shape, self.joined = shape, joined

    def forward(self, condition: Tensor, z: Tensor) -> Tensor:
        """Observations [batch, *shape]."""
        return self.likelihood.mean(self.decoded(condition, z))

    def decoded(self, condition: Tensor, z: Tensor) -> dict[str, Tensor]:
        """What the likelihood makes of the network's output."""
        given = (torch.cat([condition, z], -1),) if self.joined else (condition, z)
        return self.likelihood(observations(self.decoder, self.shape, *given))


class ConditionalCritic(nn.Module):
    """The logit of "x is real, and belongs to this condition", which stands beside x as further channels or values."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Logits [batch]."""
        if condition.ndim < x.ndim:  # a code: each of its values is a channel
            condition = condition[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return encoded(self.encoder, torch.cat([x, condition], 1), 1)[:, 0]


@model("conditional-gan", year=2014, reference="mirza2014")
class ConditionalGAN(Stage):
    """c by a frozen model, x from c and z by a generator, and a critic of x and c."""

    joined = True
    """Whether condition and z are one code for the decoder."""

    def __init__(
        self, space: Space, shape: Shape, encoder: nn.Module, decoder: nn.Module, likelihood: Likelihood, first: Model
    ) -> None:
        super().__init__(space, shape, first)
        self.generator = ConditionalGenerator(decoder, likelihood, shape, self.joined)
        self.critic = ConditionalCritic(encoder)

    @classmethod
    def ports(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder gives one logit; the decoder takes z, and c besides."""
        return {"real": 1}, space.width

    @classmethod
    def encoder_of(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: Model) -> nn.Module:
        """The critic's network, which sees x and the condition."""
        return super().encoder_of(chosen, outputs, (shape[0] + cls.beside(shape, *first), *shape[1:]))

    @classmethod
    def decoder_of(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        """The generator's network, from c and z to x."""
        return super().decoder_of(chosen, cls.beside(shape, *first) + width, shape)

    @classmethod
    def beside(cls, shape: Shape, first: Model) -> int:
        """Channels, or values, that the condition adds to an observation."""
        return first.space.width

    def condition(self, c: Tensor) -> Tensor:
        """What generator and critic are told, of codes c that may have something behind them."""
        return c[..., : self.first.space.width]

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """What the decoder's output means; it has no density to train on."""
        return self.generator.likelihood

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """None: p(x|c, z) is not defined."""
        return {}

    def needs(self, batch: int) -> dict[str, Need]:
        """z, and what an objective may blur real and generated observations with."""
        blur = Need("normal", (batch, *self.shape))
        return {**self.space.own.needs(batch), REAL_BLUR: blur, GENERATED_BLUR: blur}

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Draw z and generate under the rows' own conditions; codes among the inputs are used as they are."""
        own = self.space.own
        condition = self.condition(x[CODES] if CODES in x else self.first.space.center(self.earlier(x["x"])))
        prior = own.prior(like=x["x"])
        z = own.sample_prior(prior, noise)
        generated = self.generator(condition, own.join(z))
        return Output({}, prior, z, {"x": {GENERATED: generated, CONDITION: condition}})

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The first stage's posterior of c, and the prior of z."""
        prior = {name: one.expand(len(x), -1) for name, one in self.space.own.prior(like=x).items()}
        return {**self.space.named(self.earlier(x)), **prior}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """The decoder's output for codes [c, z]."""
        c, z = self.apart(code)
        return self.generator.decoded(self.condition(c), z)


@model("staged-gan", year=2020, reference="msvae2020")
class StagedGAN(ConditionalGAN):
    """y = E p(y|c) by a frozen model, x from y by a refiner that z modulates, and a critic of x and y."""

    decoders = refiner
    joined = False

    @classmethod
    def decoder_of(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        """The refiner of a config."""
        return cls.decoders[chosen.name].make(shape, width, **chosen.settings)

    @classmethod
    def beside(cls, shape: Shape, first: Model) -> int:
        """y has the shape of x."""
        return shape[0]

    def condition(self, c: Tensor) -> Tensor:
        """What the first stage draws of c."""
        return self.coarse(c)

    def refined(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        """The refiner's output for coarse observations y."""
        return self.generator.decoded(y, z)
