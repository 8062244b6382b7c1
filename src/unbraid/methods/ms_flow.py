r"""MS-FLOW (msvae2020, appendix D): a conditional flow sharpens the density of a mixture of Gaussians.

    first stage    c ~ pi,  y = mu_c  or  y ~ N(mu_c, diag v_c);  fitted before training, and then frozen
    second stage   p(x|y) = N(f(x; h(y)); 0, 1) |det f'(x; h(y))|
    maximise       E[log p(x)],    log p(x) = log sum_c pi_c p(x | y_c)

f is a flow whose couplings see h(y), the encoder's features of y; only f and h learn. The code is one Concrete variable
with the logits of the mixture's p(c|x). Decoding a code means f^-1(0; h(y)), with y the mean of the components under
that code. The flow takes values minus the mixture's mean, over the root of its variance plus a tenth of the mean
variance (`unbraid.models.dequantise`).

Bytes and bits are made continuous, (level + u) / levels with u uniform on (0, 1), and densities are per level: log p(x)
is on average over u a lower bound on the log probability of the pixels (theis2016). Floats are used as they are. If y
is drawn, log p(x) has one draw of each y_c, and is a lower bound on average over draws.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.density.gaussian_mixture import Mixture, fit_mixture
from unbraid.errors import UsageError
from unbraid.latents import Concrete, Space
from unbraid.models.base import model
from unbraid.models.dequantise import BASE, DEQUANTISE, FlowModel, dequantise, level_step, pad_variance
from unbraid.networks.coupling_flow import choose_flow_networks
from unbraid.noise import Need, permutation, seed_tensor, uniform
from unbraid.objectives.base import Context, Objective, objective
from unbraid.types import Batch, Inputs, Noise, Output, Terms

Condition = Literal["mean", "sample"]

CONDITION, CLASS = "condition", "class"
"""Names of the noise of y, and of the number that chooses a component."""

MAX_ROWS_TO_FIT = 60_000


class MixtureDensities(NamedTuple):
    """Log densities [rows] under the flow and under the mixture, in nats per observation."""

    flow: Tensor
    mixture: Tensor


@model("mixture-flow", reference="msvae2020")
class MixtureFlow(FlowModel):
    """A frozen mixture of Gaussians, and a flow conditioned on a component's mean or sample."""

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    def __init__(self, *parts: Any, condition: Condition = "mean", floor: float = 1e-4, features: int = 64) -> None:
        super().__init__()
        self.space, self.shape, *networks = parts
        self.set_networks(*networks, features=features)
        self.condition, self.floor = condition, floor
        components, size = self.space.width, math.prod(self.shape)
        self.register_buffer("log_weights", torch.full((components,), -math.log(components)))
        self.register_buffer("means", torch.zeros(components, size))
        self.register_buffer("variances", torch.ones(components, size))

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        super().check(space, settings)
        if not settings["floor"] > 0:
            raise UsageError(f"The floor of a mixture's variances must be above 0, not {settings['floor']:g}.")

    @property
    def mixture(self) -> Mixture:
        """The first stage, on values [rows, size]."""
        return Mixture(self.log_weights, self.means, self.variances)

    def standardisation(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance that standardise the flow's inputs."""
        center, variance = self.mixture.moments()
        return center, pad_variance(variance)

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Fit the mixture to training rows."""
        step = level_step(dataset)
        fitted = _fit_once(dataset, rows, seed, step, self.space.width, self.floor)
        self.step.fill_(step)
        for buffer, value in zip(self.mixture, fitted, strict=True):
            buffer.copy_(value)

    def needs(self, batch: int) -> dict[str, Need]:
        need = {DEQUANTISE: Need("uniform", (batch, math.prod(self.shape)))}
        if self.condition == "sample":
            need[CONDITION] = Need("normal", (batch, *self.means.shape[-2:]))
        return need

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        values = dequantise(inputs.x["x"].flatten(1), noise[DEQUANTISE], self.step)
        both = (self._log_density(values, noise), self.mixture.log_density(values))
        densities = MixtureDensities(*(self.to_level_density(density, values.shape[-1]) for density in both))
        return Output({}, {}, {}, {}, densities)

    def _log_density(self, values: Tensor, noise: Noise) -> Tensor:
        """Return log sum_c pi_c p(x | y_c) of continuous values [batch, size]."""
        y = self.means
        if self.condition == "sample":
            y = y + self.variances.sqrt() * noise[CONDITION]  # [batch, component, size]
        features = self._features(y.flatten(0, -2)).unflatten(0, y.shape[:-1])
        center, variance = self.standardisation()
        standard = (values - center) * variance.rsqrt()
        log_p = self.flow.log_density(standard.unsqueeze(-2), features)  # [batch, component]
        return (self.log_weights + log_p).logsumexp(-1) - 0.5 * variance.log().sum(-1)

    def _features(self, y: Tensor) -> Tensor:
        return self.encode_features(y.unflatten(1, self.shape))

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        """Return the logits of p(c|x) under the mixture."""
        x = inputs.x["x"].flatten(1)
        return self.space.split(self.mixture.joint(dequantise(x, torch.full_like(x, 0.5), self.step)), noise)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Decode probabilities of components, or these followed by their noise, through the flow."""
        components, size = self.means.shape
        code = nn.functional.pad(code, (0, components + 2 * size - code.shape[-1]))
        weights, base, drawn = code.split([components, size, size], -1)
        y = weights @ self.means + (weights @ self.variances).clamp_min(0).sqrt() * drawn
        center, variance = self.standardisation()
        return self.to_pixels(center + variance.sqrt() * self.flow.inverse(base, self._features(y)))

    def prior_needs(self, count: int) -> dict[str, Need]:
        size = math.prod(self.shape)
        need = {CLASS: Need("uniform", (count, 1)), BASE: Need("normal", (count, size))}
        return need | ({CONDITION: Need("normal", (count, size))} if self.condition == "sample" else {})

    def prior_codes(self, noise: Noise) -> Tensor:
        """Draw one-hot components by their weights, followed by the decoder's noise."""
        ends = self.log_weights.exp().cumsum(-1)
        chosen = torch.searchsorted(ends, noise[CLASS] * ends[-1]).clamp_max(len(ends) - 1)
        parts = [nn.functional.one_hot(chosen[:, 0], len(ends)).to(ends), noise[BASE]]
        return torch.cat([*parts, *([noise[CONDITION]] if CONDITION in noise else [])], -1)


def _fit_once(dataset: FactorDataset, rows: Tensor, seed: int, step: float, components: int, floor: float) -> Mixture:
    """Fit a mixture to some rows; the data set caches it, since a run asks several times before it begins."""
    rows_hash = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
    cache = dataset.__dict__.setdefault("_mixtures", {})
    key = (dataset.content_hash(), rows_hash, seed, components, floor)
    if key not in cache:
        place = torch.device("cpu") if dataset.device.type == "mps" else dataset.device
        seeds = seed_tensor(seed, device=place)
        chosen = rows[permutation(seeds, 0, len(rows))[0, :MAX_ROWS_TO_FIT].to(rows.device)]
        x = dataset.images(chosen).flatten(1).to(place)
        _make_continuous(x, seeds, step)
        cache[key] = fit_mixture(x, components, floor=floor, seed=seed).mixture
    return cache[key]


def _make_continuous(x: Tensor, seeds: Tensor, step: float) -> None:
    """Make rows continuous in place, in pieces, since the noise is made in float64."""
    for number, piece in enumerate(x.split(max(1, (1 << 24) // x.shape[1])) if step else ()):
        piece.copy_(dequantise(piece, uniform(seeds, number, f"{DEQUANTISE}/fit", tuple(piece.shape))[0], step))


@objective(
    "ms-flow",
    model="mixture-flow",
    reference="msvae2020",
    network=choose_flow_networks,
    defaults={"latents": "concrete:10", "likelihood": "gaussian", "batch": 1000, "lr": 1e-3},
    trial={"z": None, "network": None, "decoder_couplings": 2, "features": 8, "latents": "concrete:3"},
)
class MSFlow(Objective):
    """MS-FLOW: a flow raises the log density log sum_c pi_c p(x|y_c) over that of a frozen mixture of Gaussians.

    The flow sees of a component its `mean` or a `sample` from it (`condition`). `floor` is the least variance of a
    component, in units of the observations squared, and `features` the number of features of y that the flow sees.
    """

    def check(self, dataset: FactorDataset, space: Space) -> None:
        blocks = list(space.blocks.values())
        if len(blocks) != 1 or not isinstance(blocks[0], Concrete) or blocks[0].leaves != 1:
            raise UsageError("The code of an ms-flow is the component of its mixture: use only latents=concrete:10.")
        if math.prod(dataset.shape) < 2:
            raise UsageError("An ms-flow splits the values of an observation in two; these observations have only one.")

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the flow's log density, and the mixture's for the history."""
        return Terms({"flow": (out.extra.flow.mean(-1), -1.0), "mixture": (out.extra.mixture.mean(-1), 0.0)})
