r"""Conditional GANs on a frozen first stage: CGAN (mirza2014) and MS-GAN (msvae2020, appendix E).

    critic      E[softplus(-D(x, k))] + E[softplus(D(G(k, z), k))]
    generator   E[softplus(-D(G(k, z), k))]

    CGAN        k = c, the first stage's code of the row x, or the row's own labels
    MS-GAN      k = y = E p(y|c), the first stage's image of that code

The critic sees an observation together with its condition k, so a generator that ignores the condition loses.
z ~ p(z) is the generator's noise. Nothing infers it from an observation, so its posterior is its prior: codes are
[c, z] as in any stage, c is the first stage's, and z says nothing about a row. The game and its instance noise are
those of `unbraid.objectives.adversarial`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.data.factors import FactorDataset
from unbraid.latents import Space
from unbraid.models.adversarial import AdversarialModel, Generator
from unbraid.models.base import Model, model, run_decoder, run_encoder
from unbraid.models.staged import LaterStage
from unbraid.networks import Outputs, refiner
from unbraid.networks.gan import choose_cgan_network, choose_staged_gan_networks
from unbraid.noise import Need
from unbraid.objectives.adversarial import AdversarialObjective
from unbraid.objectives.base import Context, check_normal, objective
from unbraid.objectives.staged import StageObjective
from unbraid.types import Inputs, Noise, Output, Shape

SETTINGS = {"defaults": {"latents": "normal:10", "lr": 1e-4, "batch": 64}}


class GeneratedGiven(NamedTuple):
    """Generated observations [rows, *shape] and their conditions [rows, …]."""

    images: Tensor
    condition: Tensor


class ConditionalGenerator(Generator):
    """A network from conditions and z, or from both as one code, to observations."""

    def __init__(self, *parts: Any, joined: bool) -> None:
        super().__init__(*parts)
        self.joined = joined

    def decode(self, *given: Tensor) -> dict[str, Tensor]:
        seen = (torch.cat(given, -1),) if self.joined else given
        return self.likelihood(run_decoder(self.decoder, self.shape, *seen))


class ConditionalCritic(nn.Module):
    """A network of the logit of "x is real and fits its condition"; the condition adds channels or values to x."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        if condition.ndim < x.ndim:  # a code: each of its values is a channel
            condition = condition[:, :, None, None].expand(-1, -1, *x.shape[2:])
        return run_encoder(self.encoder, torch.cat([x, condition], 1), 1)[:, 0]


@model("conditional-gan", reference="mirza2014")
class ConditionalGAN(AdversarialModel, LaterStage):
    """A frozen model of c, a generator of x from c and z, and a critic of x and c.

    If `joined`, condition and z are one code for the decoder.
    """

    joined = True

    def __init__(self, *parts: Any) -> None:
        space, shape, encoder, decoder, likelihood, first = parts
        super().__init__(space, shape, first)
        self.generator = ConditionalGenerator(decoder, likelihood, shape, joined=self.joined)
        self.critic = ConditionalCritic(encoder)

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder outputs one logit; the decoder takes z, and `make_decoder` adds the condition."""
        return {"real": 1}, space.width

    @classmethod
    def make_encoder(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: Model) -> nn.Module:
        return super().make_encoder(chosen, outputs, (shape[0] + cls.condition_size(shape, *first), *shape[1:]))

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        return super().make_decoder(chosen, cls.condition_size(shape, *first) + width, shape)

    @classmethod
    def condition_size(cls, shape: Shape, first: Model) -> int:
        """Return the number of channels or values that the condition adds to an observation."""
        return first.space.width

    def condition(self, c: Tensor) -> Tensor:
        """Return the condition of codes c, or of c followed by the noise of the first stage's decoder."""
        return c[..., : self.first.space.width]

    def needs(self, batch: int) -> dict[str, Need]:
        return {**self.space.last_stage.needs(batch), **self.instance_noise_needs(batch)}

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Draw z and generate under the rows' conditions, from the given code c if there is one."""
        own, condition = self.space.last_stage, self.condition(self.get_first_code(inputs))
        prior = own.prior(like=inputs.x["x"])
        z = own.sample_prior(prior, noise)
        return Output({}, prior, z, {}, GeneratedGiven(self.generator(condition, own.join(z)), condition))

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return the first stage's posterior of c, and the prior of z."""
        x = inputs.x["x"]
        prior = {name: one.expand(x.shape[0], -1) for name, one in self.space.last_stage.prior(like=x).items()}
        return {**self.space.rename_blocks(self.encode_first(x)), **prior}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        c, z = self.split_code(code)
        return self.generator.decode(self.condition(c), z)


@model("staged-gan", reference="msvae2020")
class StagedGAN(ConditionalGAN):
    """A frozen model of y = E p(y|c), a refiner of y that z modulates, and a critic of x and y."""

    decoders = refiner
    joined = False

    @classmethod
    def make_decoder(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        return cls.decoders[chosen.name].make(shape, width, **chosen.settings)

    @classmethod
    def condition_size(cls, shape: Shape, first: Model) -> int:
        return shape[0]

    def condition(self, c: Tensor) -> Tensor:
        return self.decode_first(c)

    def refine(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        return self.generator.decode(y, z)


class ConditionalGame(StageObjective, AdversarialObjective):
    """A generator against a critic; both see the condition of the row."""

    def check(self, dataset: FactorDataset, space: Space) -> None:
        check_normal(space, "z is standard normal noise")

    def generate(self, out: Output, context: Context) -> Tensor:
        z = context.part(context.space.last_stage.join(out.sample))
        return context.apply("model.generator", out.extra.condition, z)

    def criticise(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        return context.apply("model.critic", x, out.extra.condition), None


@objective(
    "ms-gan",
    model="staged-gan",
    reference="msvae2020",
    stage="gan",
    network=choose_staged_gan_networks,
    **SETTINGS,
)
class MSGAN(ConditionalGame):
    """MS-GAN: a GAN that refines a finished run, x = G(y, z) against D(x, y), y the run's own reconstruction.

    z ~ p(z) modulates the generator (AdaIN) in place of BatchNorm; nothing infers it from observations. Both Adams have
    betas .5 and .999. `instance_noise` is the standard deviation of the noise on observations at the start; it is 0
    after `instance_noise_steps` steps. If the run's codes are labels, `given` names them in order, and y is that of the
    row's own labels; `circular` ones return to their first value after the last.
    """


@objective(
    "cgan",
    model="conditional-gan",
    reference="mirza2014",
    stage="cgan",
    network=choose_cgan_network,
    **SETTINGS,
)
class CGAN(ConditionalGame):
    """CGAN: a GAN given the code c of a finished run, x = G(c, z) against D(x, c); the comparison for MS-GAN.

    A DCGAN takes c and z as one code. Everything else is as in `ms-gan`.
    """
