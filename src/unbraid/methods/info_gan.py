r"""InfoGAN (chen2016): a GAN that also raises a lower bound on the information of an observation about its codes.

    critic      E[softplus(-D(x))] + E[softplus(D(G(c, e)))] - lambda L
    generator   E[softplus(-D(G(c, e)))]                     - lambda L
    L = H(c) + E[log Q(c | G(c, e))] <= I(c; G(c, e))

with codes c ~ p(c), further noise e ~ p(e), and logits D of "real". Q shares its network and its optimizer with D, and
both sides raise L. The codes are the latent space, and Q(c|x) takes the place of a VAE's posterior. chen2016 also has
discrete codes; here Q is a factorised Gaussian and all codes are continuous. The game and its instance noise are those
of `unbraid.objectives.adversarial`.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.models.adversarial import AdversarialModel, Generator
from unbraid.models.base import model, run_decoder, run_encoder
from unbraid.networks.gan import choose_gan_network
from unbraid.noise import Need
from unbraid.objectives.adversarial import AdversarialObjective
from unbraid.objectives.base import Context, objective
from unbraid.types import Inputs, Noise, Output, Terms, Weight

Draws = Literal["uniform", "normal"]

DEFAULTS = {"latents": "normal:5", "lr": 2e-4, "batch": 128}
NOISE = "noise"


class Generated(NamedTuple):
    """Generated observations [rows, *shape]."""

    images: Tensor


class CodeGenerator(Generator):
    """A network from standard normal codes and noise to observations.

    With uniform draws the decoder sees erf(c / sqrt 2), which is uniform on (-1, 1) if c is standard normal. The latent
    space, its entropy and the mutual information are the same for both.
    """

    def __init__(self, *parts: Any, draws: Draws) -> None:
        super().__init__(*parts)
        self.draws = draws

    def decode(self, *given: Tensor) -> dict[str, Tensor]:
        code = torch.cat(given, -1)
        seen = torch.erf(code / math.sqrt(2)) if self.draws == "uniform" else code
        return self.likelihood(run_decoder(self.decoder, self.shape, seen))


class Critic(nn.Module):
    """D and Q: a network whose last output is the logit of "real", and the others are the parameters of Q(c|x)."""

    def __init__(self, encoder: nn.Module, space: Space) -> None:
        super().__init__()
        self.encoder, self.space = encoder, space

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return logits [batch] and Q's parameters by block."""
        flat = run_encoder(self.encoder, x, sum(self.space.outputs.values()) + 1, "encoder (codes, then one logit)")
        return flat[:, -1], self.space.split(flat[:, :-1])


@model("adversarial", reference="chen2016")
class InfoGANModel(AdversarialModel):
    """A generator of observations from codes and noise, and a critic that judges observations and infers the codes."""

    def __init__(self, *parts: Any, noise: int = 5, draws: Draws = "uniform") -> None:
        super().__init__()
        self.space, self.shape, encoder, decoder, likelihood = parts
        self.noise = noise
        self.generator = CodeGenerator(decoder, likelihood, self.shape, draws=draws)
        self.critic = Critic(encoder, self.space)

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        if settings["noise"] < 0:
            raise UsageError(f"noise must be 0 or above, not {settings['noise']}.")

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder outputs Q's parameters and one more logit; the decoder takes the codes and the noise."""
        return {**space.outputs, "real": 1}, space.width + settings["noise"]

    def needs(self, batch: int) -> dict[str, Need]:
        return {**self.prior_needs(batch), **self.instance_noise_needs(batch)}

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Draw codes and generate; the objective calls the critic on blurred observations."""
        prior = self.space.prior(like=inputs.x["x"])
        codes = self.space.sample(prior, noise)
        return Output({}, prior, codes, {}, Generated(self.generator(self.space.join(codes), noise[NOISE])))

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        return self.critic(inputs.x["x"])[1]

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Return likelihood parameters of codes [batch, width], or of codes followed by their noise."""
        missing = self.space.width + self.noise - code.shape[-1]
        return self.generator.decode(functional.pad(code, (0, missing)))

    def prior_needs(self, count: int) -> dict[str, Need]:
        return {**self.space.needs(count), NOISE: Need("normal", (count, self.noise))}

    def prior_codes(self, noise: Noise) -> Tensor:
        return torch.cat([super().prior_codes(noise), noise[NOISE]], -1)


@objective("info-gan", model="adversarial", reference="chen2016", network=choose_gan_network, defaults=DEFAULTS)
class InfoGAN(AdversarialObjective):
    """InfoGAN: a GAN that also raises H(c) + E[log Q(c|G(c, e))], a lower bound on I(c; G(c, e)).

    The generator takes `z` codes, which Q infers, and `noise` further inputs; `draws` is their distribution. Both Adams
    are DCGAN's (radford2016: 2e-4, betas .5 and .999). `instance_noise` is the standard deviation of the noise on
    observations at the start; it is 0 after `instance_noise_steps` steps.
    """

    def __init__(self, *, lambda_info: Weight = 0.1, **game: Any) -> None:
        self.lambda_info = lambda_info
        super().__init__(**game)

    def check(self, dataset: FactorDataset, space: Space) -> None:
        others = [name for name, block in space.blocks.items() if type(block) is not Normal]
        if others:
            raise UsageError(f"info-gan needs continuous codes, and {others[0]} is not: use z=5 or latents=normal:5.")

    def generate(self, out: Output, context: Context) -> Tensor:
        codes = context.part(context.space.join(out.sample))
        return context.apply("model.generator", codes, context.part(context.noise[NOISE]))

    def criticise(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        """Return D(x) and the parameters of Q(c|x)."""
        return context.apply("model.critic", x)

    def further_terms(self, outputs: Any, out: Output, context: Context) -> Terms:
        """Return the bound L [member] on the information, which both sides raise."""
        codes = {name: context.part(sample) for name, sample in out.sample.items()}
        entropy = 0.5 * math.log(2 * math.pi * math.e) * context.space.leaves
        info = entropy + context.space.log_density(outputs, codes).sum(-1).mean(-1)
        return Terms({"info": (info, -self.lambda_info)})
