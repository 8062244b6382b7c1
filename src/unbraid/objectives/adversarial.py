r"""InfoGAN (chen2016): two sides of a game, and a lower bound on what an observation tells about its codes.

    critic      E[softplus(-D(x))] + E[softplus(D(G(c, e)))] - lambda L
    generator   E[softplus(-D(G(c, e)))]                     - lambda L
    L = H(c) + E[log Q(c | G(c, e))] <= I(c; G(c, e))

The generator's loss is the non-saturating one (goodfellow2014). Q shares its network with D, moves with it, and is as
much in favour of L as the generator is. Both sides see observations blurred by the same amount of noise, which falls to
0 in a straight line (instance noise, sonderby2017): early on, data and generated observations overlap nowhere else.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.models.adversarial import GENERATED, GENERATED_BLUR, NOISE, REAL_BLUR
from unbraid.networks.gan import adversarial_network
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.schedules import ramp
from unbraid.types import Batch, Output, Player, Terms, Weight

DCGAN = {"lr": 2e-4, "batch": 128}
BETAS = (0.5, 0.999)


class Game(Objective):
    """A generator against a critic, both of which see observations under instance noise.

    What the two are asked is an objective's own: `generated` are observations of the generator as it is now, `asked`
    the critic's logits with whatever else it says, and `further` terms that both sides make of that.
    """

    name = ""
    """What errors call it."""

    def __init__(self, instance_noise: Weight, instance_noise_steps: int) -> None:
        if instance_noise_steps < 0:
            raise UsageError(f"instance_noise_steps must be 0 or above, not {instance_noise_steps}.")
        self.instance_noise, self.steps = instance_noise, instance_noise_steps
        super().__init__(self.generator_terms)

    @abstractmethod
    def generated(self, out: Output, context: Context) -> Tensor:
        """Observations of the generator as it is now, at the shared forward's codes and noise."""

    @abstractmethod
    def asked(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        """The critic's logits [member, batch] of "real", and what else it says."""

    def further(self, said: Any, out: Output, context: Context) -> Terms:
        """Terms of both sides besides the game, of what the critic says of generated observations."""
        return Terms()

    def players(self) -> list[Player]:
        """The generator, and then the critic against what the generator has become."""
        return [
            Player("generator", ("model.generator.",), self.generator_terms, optimizer={"betas": BETAS}),
            Player("critic", ("model.critic.",), self.critic_terms, optimizer={"betas": BETAS}),
        ]

    def generator_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """How well the critic sees through what is generated."""
        logits, said = self.asked(self._blurred(out.decoded["x"][GENERATED], GENERATED_BLUR, context), out, context)
        return Terms({"adversarial": (softplus(-logits).mean(-1), 1.0)}) | self.further(said, out, context)

    def critic_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Cross-entropies of real and of generated observations: log 2 each is guessing.

        The critic answers the generator as it is now: the shared forward was made before that moved.
        """
        with torch.no_grad():
            generated = self.generated(out, context)
        real, _ = self.asked(self._blurred(batch.x["x"], REAL_BLUR, context), out, context)
        fake, said = self.asked(self._blurred(generated, GENERATED_BLUR, context), out, context)
        right = 0.5 * ((real > 0).to(real).mean(-1) + (fake < 0).to(fake).mean(-1))
        losses = {"real": (softplus(-real).mean(-1), 1.0), "generated": (softplus(fake).mean(-1), 1.0)}
        level = torch.zeros_like(right) + self.level(context.step)
        logged = Terms({"accuracy": (right, 0.0), "instance_noise": (level, 0.0)})
        return Terms(losses) | self.further(said, out, context) | logged

    def level(self, step: int | Tensor) -> Weight:
        """Standard deviation of the instance noise at a step."""
        return self.instance_noise * (1.0 - ramp(step, self.steps))

    def _blurred(self, x: Tensor, name: str, context: Context) -> Tensor:
        level = self.level(context.step)
        if isinstance(level, Tensor):
            level = level.view(-1, *[1] * (x.ndim - 1))  # [member, 1, …], or one for all
        return x + level * context.part(context.noise[name])


@objective(
    "info-gan",
    model="adversarial",
    year=2016,
    reference="chen2016",
    network=adversarial_network,
    defaults={"latents": "normal:5", **DCGAN},
)
class InfoGAN(Game):
    """InfoGAN: a GAN that also raises H(c) + E[log Q(c|G(c, e))], a lower bound on I(c; G(c, e)).

    `z` codes that Q reads back and `noise` further inputs of the generator, all drawn as `draws` says; both Adams are
    DCGAN's (radford2016: 2e-4, betas .5 and .999) unless `lr` says otherwise. `instance_noise` is the standard
    deviation of the noise on observations at the start; it is 0 after `instance_noise_steps` steps.
    """

    name = "an info-gan"

    def __init__(
        self,
        *,
        lambda_info: Weight = 0.1,
        instance_noise: Weight = 0.1,
        instance_noise_steps: int = 10_000,
    ) -> None:
        self.lambda_info = lambda_info
        super().__init__(instance_noise, instance_noise_steps)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Q is a factored Gaussian, so all codes are continuous."""
        others = [name for name, block in space.blocks.items() if type(block) is not Normal]
        if others:
            raise UsageError(f"info-gan has continuous codes, and {others[0]} is not: use z=5 or latents=normal:5.")

    def generated(self, out: Output, context: Context) -> Tensor:
        """G(c, e)."""
        codes = context.part(context.space.join(out.sample))
        return context.apply("model.generator", codes, context.part(context.noise[NOISE]))

    def asked(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        """D(x) and the parameters of Q(c|x)."""
        return context.apply("model.critic", x)

    def further(self, said: Any, out: Output, context: Context) -> Terms:
        """The bound L [member] on the information, which both sides raise."""
        codes = {name: context.part(sample) for name, sample in out.sample.items()}
        entropy = 0.5 * math.log(2 * math.pi * math.e) * context.space.leaves
        info = entropy + context.space.log_density(said, codes).sum(-1).mean(-1)
        return Terms({"info": (info, -self.lambda_info)})
