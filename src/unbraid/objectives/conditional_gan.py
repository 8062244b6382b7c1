r"""Conditional GANs (mirza2014), and a second stage that is one (MS-GAN: msvae2020, appendix E).

    critic      E[softplus(-D(x, k))] + E[softplus(D(G(k, z), k))]
    generator   E[softplus(-D(G(k, z), k))]

with z ~ p(z) and a condition k that belongs to the row x: the code c of a frozen first stage (CGAN), or what that stage
draws of it, y = E p(y|c) (MS-GAN). Pairs of an observation and its condition are told apart, so a generator that
ignores the condition loses. c is read from the row by the first stage, or is the row's own labels.
"""

from typing import Any

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.latents import Space, Stages
from unbraid.models.conditional_gan import CONDITION
from unbraid.networks.gan import conditional_network, staged_networks
from unbraid.objectives.adversarial import Game
from unbraid.objectives.base import Context, objective
from unbraid.objectives.staged import SecondStage
from unbraid.objectives.weak import refuse_others
from unbraid.types import Output, Weight

DEFAULTS = {"latents": "normal:10", "lr": 1e-4, "batch": 64}


class ConditionalGame(SecondStage, Game):
    """A generator against a critic, both told what the first stage makes of the row."""

    def __init__(
        self,
        *,
        instance_noise: Weight = 0.1,
        instance_noise_steps: int = 10_000,
        given: tuple[str, ...] = (),
        circular: tuple[str, ...] = (),
    ) -> None:
        self.take(given, circular)
        super().__init__(instance_noise, instance_noise_steps)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """z is noise."""
        refuse_others(space, "z is standard normal noise")

    def generated(self, out: Output, context: Context) -> Tensor:
        """G(k, z)."""
        assert isinstance(context.space, Stages)
        z = context.part(context.space.own.join(out.sample))
        return context.apply("model.generator", out.decoded["x"][CONDITION], z)

    def asked(self, x: Tensor, out: Output, context: Context) -> tuple[Tensor, Any]:
        """D(x, k)."""
        return context.apply("model.critic", x, out.decoded["x"][CONDITION]), None


@objective(
    "ms-gan",
    model="staged-gan",
    year=2020,
    reference="msvae2020",
    stage="gan",
    network=staged_networks,
    defaults=DEFAULTS,
)
class MSGAN(ConditionalGame):
    """MS-GAN: refines a finished run by a GAN, x = G(y, z) against D(x, y), y the run's own reconstruction.

    z ~ p(z) modulates the generator (AdaIN) in the place of BatchNorm, and is not read back from observations. Both
    Adams have betas .5 and .999. `instance_noise` is the standard deviation of the noise on observations at the start;
    it is 0 after `instance_noise_steps` steps. Where the run's code is labels, `given` names them in their order: y is
    then that of the row's own labels, of which `circular` ones come back to their first value after the last.
    """

    name = "an ms-gan"


@objective(
    "cgan",
    model="conditional-gan",
    year=2014,
    reference="mirza2014",
    stage="cgan",
    network=conditional_network,
    defaults=DEFAULTS,
)
class CGAN(ConditionalGame):
    """CGAN: a GAN that is told the code c of a finished run, x = G(c, z) against D(x, c); MS-GAN's comparison.

    c and z enter a DCGAN together. All else, and all settings, are those of `ms-gan`.
    """

    name = "a cgan"
