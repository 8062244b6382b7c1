r"""A model in stages (msvae2020): a frozen first stage C -> Y, and a second one (Y, Z) -> X that adds what Y lacks.

    c ~ q(c|x) of the first stage       y = E p(y|c), its decoder's mean
    z ~ q(z|x - y)                      x ~ p(x|y, z), by a refiner that z only modulates

The first stage is a whole model, under `first`: its parameters have no gradient, it never leaves evaluation mode and
runs without a record for autograd, so that no loss can reach it. A first stage may have stages itself.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.errors import UsageError
from unbraid.latents import Space, Stages
from unbraid.models.base import Model, encoded, model, observations
from unbraid.models.recentre import Frame
from unbraid.networks import Likelihood, refiner
from unbraid.noise import Need
from unbraid.store import under
from unbraid.types import Noise, Output, Shape

FIRST = "first."

CODES, OWN = "c", "z"
"""Beside the observations, codes that are known already, as labels are: of the first stage, and of the stage's own."""


class Stage(Model):
    """A stage behind a frozen one, the first: codes are [c, z], c the other's and z its own."""

    space: Stages  # type: ignore[override]

    def __init__(self, space: Space, shape: Shape, first: Model) -> None:
        super().__init__()
        if not space.density:
            raise UsageError("Quantised latents are points, and a stage's own latents need densities.")
        self.space = Stages(first.space, space)
        self.shape = shape
        self.first = first.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Stage":
        """The first stage stays as scores saw it, its BatchNorms included."""
        super().train(mode)
        self.first.eval()
        return self

    def earlier(self, x: Tensor) -> dict[str, Tensor]:
        """The first stage's posterior, by its own names of its blocks, in full precision and without a gradient."""
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return self.first.encode(x)

    def coarse(self, code: Tensor) -> Tensor:
        """y: what the first stage expects at codes c, without a gradient."""
        with torch.no_grad(), torch.autocast(code.device.type, enabled=False):
            return self.first.likelihood.mean(self.first.decode(code))

    def refined(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of p(x|y, z) at any y; an error where a stage draws from something else."""
        raise UsageError("The second stage of this model draws from codes, or is a flow around y: give it no other y.")

    def stages(self, code: Tensor) -> list[Tensor]:
        """Expected observations of codes after each stage, the first one's first."""
        c = self.apart(code)[0]
        before = self.first.stages(c) if isinstance(self.first, Stage) else [self.coarse(c)]
        return [*before, self.likelihood.mean(self.decode(code))]

    def apart(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """c, with behind it what the first stage's decoder may take besides, and z."""
        width = self.space.own.width
        return code[..., :-width], code[..., -width:]

    def learned_prior(self) -> dict[str, Tensor]:
        """That of the first stage."""
        return self.first.learned_prior()

    def prior_needs(self, count: int) -> dict[str, Need]:
        """What either stage's draws consume."""
        return {**{FIRST + n: need for n, need in self.first.prior_needs(count).items()}, **self.space.own.needs(count)}

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draws of c as the first stage makes them, and of z."""
        own, c = self.space.own, self.first.prior_codes(under(FIRST, noise))
        return torch.cat([c, own.join(own.sample_prior(own.prior(like=c), noise))], -1)

    def completed(self, code: Tensor, drawn: Tensor) -> Tensor:
        """What the first stage's decoder takes besides stands behind c."""
        (c, z), earlier = self.apart(code), self.apart(drawn)[0]
        return torch.cat([self.first.completed(c, earlier), z], -1)


@model("staged", year=2020, reference="msvae2020")
class Staged(Stage):
    """q(c|x) and E p(y|c) by a frozen model, q(z|x - y) by the encoder, p(x|y, z) by a refiner and the likelihood.

    In training y comes from the mean of c, or for `samples` above 0 from draws of c, of which each observation has that
    many: rows come that often. For any other purpose the deterministic code of c is meant. Labels of the factors that
    `given` names stand in the place of c where they are passed in (`unbraid.data.label_codes`).
    """

    decoders = refiner

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: Likelihood,
        first: Model,
        *,
        samples: int = 0,
        given: tuple[str, ...] = (),
        circular: tuple[str, ...] = (),
    ) -> None:
        super().__init__(space, shape, first)
        self.encoder, self.decoder, self.likelihood = encoder, decoder, likelihood
        self.samples, self.frame = samples, Frame(space)
        self.given, self.circular = given, tuple(name for name in circular if name in given)

    @classmethod
    def decoder_of(cls, chosen: Choice, width: int, shape: Shape, *first: Model) -> nn.Module:
        """The refiner of a config."""
        return cls.decoders[chosen.name].make(shape, width, **chosen.settings)

    @property
    def likelihoods(self) -> dict[str, Likelihood]:
        """That of the last stage."""
        return {"x": self.likelihood}

    def needs(self, batch: int) -> dict[str, Need]:
        """Noise for each row of a batch, as often as it comes."""
        return self.space.needs(max(1, self.samples) * batch)

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode and decode by the first stage; encode what is missing, sample, refine. Only z's prior is given.

        Codes among the inputs take the place of those that would be encoded or drawn.
        """
        own = self.space.own
        earlier: dict[str, Tensor] = {}
        drawn: dict[str, Tensor] = {}
        if CODES in x:
            code = x[CODES]
        else:
            earlier = self.earlier(x["x"])
            drawn = self.first.space.sample(earlier, {old: noise[new] for old, new in self.space.names.items()})
            code = self.first.space.join(drawn) if self.samples else self.first.space.center(earlier)
        y = self.coarse(code)
        posterior = {**self.space.named(earlier), **self.missing(x["x"], y, noise)}
        made = dict.fromkeys(own.blocks, x[OWN]) if OWN in x else own.sample(posterior, noise)
        refined = self.refined(y, own.join(made))
        return Output(posterior, own.prior_of(posterior), {**self.space.named(drawn), **made}, {"x": refined})

    def missing(self, x: Tensor, y: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """q(z|x - y) by block."""
        own = self.space.own
        return self.frame.posterior(own.split(encoded(self.encoder, x - y, sum(own.outputs.values())), noise))

    def refined(self, y: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of p(x|y, z)."""
        return self.likelihood(observations(self.decoder, self.shape, y, self.frame.code(z), name="refiner"))

    def encode_given(self, x: Tensor, code: Tensor) -> dict[str, Tensor]:
        """q(z|x, y) by block, at the y of codes c [batch, width] that are known, as labels are."""
        return self.missing(x, self.coarse(code))

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The first stage's posterior of c and, at its y, that of z."""
        earlier = self.earlier(x)
        y = self.coarse(self.first.space.center(earlier))
        return {**self.space.named(earlier), **self.missing(x, y, noise)}

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Likelihood parameters of codes [c, z]; c may have behind it what the first stage's decoder takes besides."""
        c, z = self.apart(code)
        return self.refined(self.coarse(c), z)
