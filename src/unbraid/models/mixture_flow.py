r"""A mixture of Gaussians and a flow that sharpens it (MS-FLOW, msvae2020, appendix D).

    first stage    c ~ pi,  y = mu_c  or  y ~ N(mu_c, diag v_c);  fitted before training, and then frozen
    second stage   p(x|y) = N(f(x; h(y)); 0, 1) |det f'(x; h(y))|
    density        log p(x) = log sum_c pi_c p(x | y_c)

f is a flow whose couplings see h(y), what the encoder makes of y. The codes are the classes of one Concrete variable,
whose logits are those of the mixture's p(c|x); a code decodes to what 0 at the flow's base stands for, given the mean
of the components under that code. The flow takes values minus the mixture's mean, over the root of its variance plus
a tenth of the mean variance: a pixel that is hardly ever lit would otherwise be 100 deviations away when it is.

Bytes and bits are made continuous, (level + u) / levels with u uniform on (0, 1), and densities are per level: log p(x)
is a lower bound of the log probability of the pixels on average over u (theis2016). Floats are taken as they are. Where
y is drawn, log p(x) has one draw of each y_c, and is a lower bound on average over draws.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.density.gaussian_mixture import Mixture, fit_mixture
from unbraid.errors import UsageError
from unbraid.latents import Concrete, Space
from unbraid.models.base import encoded, model
from unbraid.models.dequantise import BASE, DEQUANTISE, FLOW, SHARE, FlowDensity, continuous, levels_apart
from unbraid.networks import Likelihood
from unbraid.networks.coupling_flow import CouplingFlow
from unbraid.noise import Need, permutation, seed_tensor, uniform
from unbraid.types import Noise, Output, Shape

Condition = Literal["mean", "sample"]

CONDITION, CLASS, MIXTURE = "condition", "class", "mixture"

FITTED_TO = 60_000
"""Rows that a mixture is fitted to at most."""


@model("mixture-flow", year=2020, reference="msvae2020")
class MixtureFlow(FlowDensity):
    """A frozen mixture of Gaussians, and a flow conditioned on its component's mean or sample."""

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: CouplingFlow,
        likelihood: Likelihood,
        *,
        condition: Condition = "mean",
        floor: float = 1e-4,
        features: int = 64,
    ) -> None:
        if not floor > 0:
            raise UsageError(f"The floor of a mixture's variances must be above 0, not {floor:g}.")
        super().__init__()
        self.keep(encoder, decoder, likelihood, features)
        self.space, self.shape = space, shape
        self.condition, self.floor = condition, floor
        components, size = space.width, math.prod(shape)
        self.register_buffer("log_weights", torch.full((components,), -math.log(components)))
        self.register_buffer("means", torch.zeros(components, size))
        self.register_buffer("variances", torch.ones(components, size))

    @property
    def mixture(self) -> Mixture:
        """The first stage, on values [rows, size]."""
        return Mixture(self.log_weights, self.means, self.variances)

    def standard(self) -> tuple[Tensor, Tensor]:
        """What values are taken from, and the square of what they are divided by, before the flow sees them."""
        center, variance = self.mixture.moments()
        return center, variance + SHARE * variance.mean(-1, keepdim=True)

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Fit the mixture to training rows."""
        step = levels_apart(dataset)
        fitted = _fitted(dataset, rows, seed, step, self.space.width, self.floor)
        self.step.fill_(step)
        for own, found in zip(self.mixture, fitted, strict=True):
            own.copy_(found)

    def needs(self, batch: int) -> dict[str, Need]:
        """What makes pixels continuous, and draws of y where it is drawn."""
        need = {DEQUANTISE: Need("uniform", (batch, math.prod(self.shape)))}
        if self.condition == "sample":
            need[CONDITION] = Need("normal", (batch, *self.means.shape[-2:]))
        return need

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Log densities [batch] of observations under both stages, in nats per observation."""
        values = continuous(x["x"].flatten(1), noise[DEQUANTISE], self.step)
        densities = {MIXTURE: self.mixture.log_density(values), FLOW: self._sharpened(values, noise)}
        return self.told(densities, values.shape[-1])

    def _sharpened(self, values: Tensor, noise: Noise) -> Tensor:
        """log sum_c pi_c p(x | y_c) of continuous values [batch, size]."""
        y = self.means
        if self.condition == "sample":
            y = y + self.variances.sqrt() * noise[CONDITION]  # [batch, component, size]
        features = self._features(y.flatten(0, -2)).unflatten(0, y.shape[:-1])
        center, variance = self.standard()
        standard = (values - center) * variance.rsqrt()
        log_p = self.flow.log_density(standard.unsqueeze(-2), features)  # [batch, component]
        return (self.log_weights + log_p).logsumexp(-1) - 0.5 * variance.log().sum(-1)

    def _features(self, y: Tensor) -> Tensor:
        return encoded(self.encoder, y.unflatten(1, self.shape), self.features)

    def encode(self, x: Tensor, noise: Noise | None = None) -> dict[str, Tensor]:
        """The logits of p(c|x) under the mixture."""
        middle = torch.full_like(x.flatten(1), 0.5)
        return self.space.split(self.mixture.joint(continuous(x.flatten(1), middle, self.step)), noise)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """What the flow makes of probabilities of components, with noise behind them or with the noise at 0."""
        components, size = self.means.shape
        code = nn.functional.pad(code, (0, components + 2 * size - code.shape[-1]))
        weights, base, drawn = code.split([components, size, size], -1)
        y = weights @ self.means + (weights @ self.variances).clamp_min(0).sqrt() * drawn
        center, variance = self.standard()
        values = center + variance.sqrt() * self.flow.inverse(base, self._features(y))
        return self.pixels(values)

    def prior_needs(self, count: int) -> dict[str, Need]:
        """A number that chooses the component, and the noise behind it."""
        size = math.prod(self.shape)
        need = {CLASS: Need("uniform", (count, 1)), BASE: Need("normal", (count, size))}
        return need | ({CONDITION: Need("normal", (count, size))} if self.condition == "sample" else {})

    def prior_codes(self, noise: Noise) -> Tensor:
        """Components drawn by their weights, one-hot, with their noise behind them."""
        ends = self.log_weights.exp().cumsum(-1)
        chosen = torch.searchsorted(ends, noise[CLASS] * ends[-1]).clamp_max(len(ends) - 1)
        parts = [nn.functional.one_hot(chosen[:, 0], len(ends)).to(ends), noise[BASE]]
        return torch.cat([*parts, *([noise[CONDITION]] if CONDITION in noise else [])], -1)


def suits(dataset: FactorDataset, space: Space) -> None:
    """Whether a mixture can be fitted to these data with these latents: a `UsageError` if not."""
    blocks = list(space.blocks.values())
    if len(blocks) != 1 or not isinstance(blocks[0], Concrete) or blocks[0].leaves != 1:
        raise UsageError("The code of an ms-flow is the component of its mixture: use latents=concrete:10 alone.")
    if math.prod(dataset.shape) < 2:
        raise UsageError("An ms-flow parts the values of an observation in two, and here there is only one.")


def _fitted(dataset: FactorDataset, rows: Tensor, seed: int, step: float, components: int, floor: float) -> Mixture:
    """The mixture of some rows; a run asks several times before it begins, and the data remember it."""
    which = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
    known = dataset.__dict__.setdefault("_mixtures", {})
    key = (dataset.content_hash(), which, seed, components, floor)
    if key not in known:
        place = torch.device("cpu") if dataset.device.type == "mps" else dataset.device
        seeds = seed_tensor(seed, device=place)
        chosen = rows[permutation(seeds, 0, len(rows))[0, :FITTED_TO].to(rows.device)]
        x = dataset.images(chosen).flatten(1).to(place)
        known[key] = fit_mixture(_spread(x, seeds, step), components, floor=floor, seed=seed).mixture
    return known[key]


def _spread(x: Tensor, seeds: Tensor, step: float) -> Tensor:
    """Rows made continuous in place, piece by piece: the noise is made in float64."""
    for number, piece in enumerate(x.split(max(1, (1 << 24) // x.shape[1])) if step else ()):
        piece.copy_(continuous(piece, uniform(seeds, number, f"{DEQUANTISE}/fit", tuple(piece.shape))[0], step))
    return x
