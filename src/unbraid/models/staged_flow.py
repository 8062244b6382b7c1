r"""A flow behind a frozen first stage (msvae2020, appendix D, upon any run): the density of x, given what c draws.

    c, y = E p(y|c) by the first stage          u = f((x - y - m) / s; h(y)) ~ N(0, I)
    log p(x|y) = log N(u; 0, I) + log |det f'| - sum log s

f is a flow whose couplings see h(y), what the encoder makes of y. m and s are the mean of x - y over training rows and
the root of its variance plus a tenth of the mean variance: where a pixel is always drawn right, s would be near 0.
Given y the density is exact, and so is x -> u -> x. Codes are those of the first stage: what the flow adds is u, as
wide as x, which samples draw and decoded codes set to 0.

Bytes and bits are made continuous, (level + u) / levels with u uniform on (0, 1), y is put on the same scale, and
densities are per level. For comparison there is the density of a Normal around y + m, with the
variances of x - y.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import Labels
from unbraid.latents import Space
from unbraid.models.base import Model, encoded, model
from unbraid.models.dequantise import BASE, DEQUANTISE, FLOW, SHARE, FlowDensity, continuous, levels_apart
from unbraid.models.staged import CODES, FIRST, Stage
from unbraid.networks import Likelihood
from unbraid.networks.coupling_flow import CouplingFlow
from unbraid.noise import Need, permutation, seed_tensor
from unbraid.store import under
from unbraid.types import Noise, Output, Shape

NORMAL = "normal"
SEEN = 10_000
"""Training rows, at most, that the mean and the variance of x - y are taken from."""

PIECE = 500
FLOOR = 1e-4
"""Least variance of x - y under the Normal, in units of the observations squared."""


@model("staged-flow", year=2020, reference="msvae2020")
class StagedFlow(FlowDensity, Stage):
    """c and y by a frozen model, p(x|y) by a flow of what y lacks."""

    center: Tensor
    variance: Tensor

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: CouplingFlow,
        likelihood: Likelihood,
        first: Model,
        *,
        features: int = 64,
        given: tuple[str, ...] = (),
        circular: tuple[str, ...] = (),
    ) -> None:
        super().__init__(space, shape, first)
        self.keep(encoder, decoder, likelihood, features)
        self.given, self.circular = given, circular
        self.register_buffer("center", torch.zeros(math.prod(shape)))
        self.register_buffer("variance", torch.ones(math.prod(shape)))

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """How x - y is spread over training rows."""
        self.to(dataset.device)
        self.step.fill_(levels_apart(dataset))
        seeds = seed_tensor(seed, device="cpu" if dataset.device.type == "mps" else dataset.device)
        chosen = rows[permutation(seeds, 0, len(rows))[0, :SEEN].to(rows.device)]
        labels = Labels(dataset, self.given, self.circular) if self.given else None
        total = square = torch.zeros(())
        for part in chosen.split(PIECE):
            x = dataset.images(part)
            y = self.coarse(self._code(x) if labels is None else labels.codes(dataset.values_of(part)))
            lack = (continuous(x.flatten(1), torch.tensor(0.5), self.step) - self.leveled(y)).double().cpu()
            total, square = total + lack.sum(0), square + lack.square().sum(0)
        mean = total / len(chosen)
        within = self.step.double().cpu().square() / 12  # of the noise that makes a level continuous
        self.center.copy_(mean)
        self.variance.copy_((square / len(chosen) - mean.square()).clamp_min(0) + within)

    def needs(self, batch: int) -> dict[str, Need]:
        """What makes pixels continuous."""
        return {DEQUANTISE: Need("uniform", (batch, math.prod(self.shape)))}

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Log densities [batch] of observations given y, in nats per observation, of the flow and of a Normal.

        Codes among the inputs take the place of those that would be encoded.
        """
        values = continuous(x["x"].flatten(1), noise[DEQUANTISE], self.step)
        y = self.coarse(x[CODES] if CODES in x else self._code(x["x"]))
        base, log_det = self.to_base(values, y)
        variance = self.variance + FLOOR
        apart = (values - self.leveled(y) - self.center).square() / variance
        densities = {
            FLOW: log_det - 0.5 * (base.square() + math.log(2 * math.pi)).sum(-1),
            NORMAL: -0.5 * (apart + variance.log() + math.log(2 * math.pi)).sum(-1),
        }
        return self.told(densities, values.shape[-1])

    def to_base(self, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """u [batch, size] of continuous values [batch, size] given y [batch, *shape], and log |det du/dx| [batch]."""
        scale = self._scale()
        base, log_det = self.flow((values - self.leveled(y) - self.center) / scale, self._features(y))
        return base, log_det - scale.log().sum(-1)

    def from_base(self, base: Tensor, y: Tensor) -> Tensor:
        """Continuous values [batch, size] whose u this is: the inverse of `to_base`."""
        return self.leveled(y) + self.center + self._scale() * self.flow.inverse(base, self._features(y))

    def leveled(self, y: Tensor) -> Tensor:
        """Observations, or y, flat and in the middle of their levels."""
        return y.flatten(1) * (1 - self.step) + 0.5 * self.step

    def _scale(self) -> Tensor:
        return (self.variance + SHARE * self.variance.mean(-1, keepdim=True)).sqrt()

    def _features(self, y: Tensor) -> Tensor:
        return encoded(self.encoder, y, self.features)

    def _code(self, x: Tensor) -> Tensor:
        return self.first.space.center(self.earlier(x))

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The first stage's posterior of c."""
        return self.space.named(self.earlier(x))

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """What the flow makes of codes c with u behind them, or alone, with u at 0."""
        c, base = self.apart(code)
        y = self.coarse(c)
        values = self.from_base(base, y)
        return self.pixels(values)

    def apart(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """c, with behind it what the first stage's decoder may take besides, and u."""
        size = math.prod(self.shape)
        if code.shape[-1] == self.space.width:
            return code, code.new_zeros(*code.shape[:-1], size)
        return code[..., :-size], code[..., -size:]

    def prior_needs(self, count: int) -> dict[str, Need]:
        """What the first stage's draws consume, and u."""
        earlier = {FIRST + name: need for name, need in self.first.prior_needs(count).items()}
        return {**earlier, BASE: Need("normal", (count, math.prod(self.shape)))}

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draws of c as the first stage makes them, with draws of u behind them."""
        return torch.cat([self.first.prior_codes(under(FIRST, noise)), noise[BASE]], -1)

    def completed(self, code: Tensor, drawn: Tensor) -> Tensor:
        """What the first stage's decoder takes besides stands behind c, and u behind that."""
        earlier, base = self.apart(drawn)
        return torch.cat([self.first.completed(code, earlier), base], -1)
