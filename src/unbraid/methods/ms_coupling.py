r"""A flow on any frozen first stage (after msvae2020, appendix D): the density of x given the first stage's y.

    c, y = E p(y|c) by the first stage          u = f((x - y - m) / s; h(y)) ~ N(0, I)
    maximise  E[log p(x|y)],    log p(x|y) = log N(u; 0, I) + log |det f'| - sum log s

f is a flow whose couplings see h(y), the encoder's features of y; only f and h learn. m is the mean of x - y over
training rows. s is the root of its variance plus a tenth of the mean variance, since the variance alone is near 0 for
pixels that are always right. Given y the density is exact, and so is x -> u -> x. Codes are those of the first stage.
The flow adds u, as wide as x: samples draw it, and decoded codes set it to 0.

Bytes and bits are made continuous, (level + u) / levels with u uniform on (0, 1), y is put on the same scale, and
densities are per level. The history compares with a Normal around y + m with the variances of x - y.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import model
from unbraid.models.dequantise import BASE, DEQUANTISE, FlowModel, dequantise, level_step, pad_variance
from unbraid.models.staged import FIRST, LaterStage
from unbraid.networks.coupling_flow import choose_flow_networks
from unbraid.noise import Need, permutation, seed_tensor
from unbraid.objectives.base import Context, objective
from unbraid.objectives.staged import StageObjective
from unbraid.store import select_prefix
from unbraid.types import Batch, Inputs, Noise, Output, Terms

MAX_ROWS_TO_FIT, ROWS_AT_ONCE = 10_000, 500
"""Training rows for the mean and the variance of x - y, in all and in one pass."""

MIN_VARIANCE = 1e-4
"""Least variance of x - y under the Normal, in units of the observations squared."""


class StageDensities(NamedTuple):
    """Log densities [rows] given y under the flow and under a Normal, in nats per observation."""

    flow: Tensor
    normal: Tensor


@model("staged-flow", reference="msvae2020")
class StagedFlow(FlowModel, LaterStage):
    """A frozen model of c and y, and a flow of p(x|y) on x - y."""

    center: Tensor
    variance: Tensor

    def __init__(
        self, *parts: Any, features: int = 64, given: tuple[str, ...] = (), circular: tuple[str, ...] = ()
    ) -> None:
        space, shape, *networks, first = parts
        super().__init__(space, shape, first, given, circular)
        self.set_networks(*networks, features=features)
        self.register_buffer("center", torch.zeros(math.prod(shape)))
        self.register_buffer("variance", torch.ones(math.prod(shape)))

    def begin(self, dataset: FactorDataset, rows: Tensor, seed: int) -> None:
        """Compute the mean and the variance of x - y over training rows."""
        self.to(dataset.device)
        self.step.fill_(level_step(dataset))
        seeds = seed_tensor(seed, device="cpu" if dataset.device.type == "mps" else dataset.device)
        chosen = rows[permutation(seeds, 0, len(rows))[0, :MAX_ROWS_TO_FIT].to(rows.device)]
        total = square = torch.zeros(())
        for part in chosen.split(ROWS_AT_ONCE):
            inputs = self.training_inputs(dataset, part)
            y = self.decode_first(self.get_first_code(inputs))
            values = dequantise(inputs.x["x"].flatten(1), torch.tensor(0.5), self.step)
            residual = (values - self.at_middle(y)).double().cpu()
            total, square = total + residual.sum(0), square + residual.square().sum(0)
        mean = total / len(chosen)
        within = self.step.double().cpu().square() / 12  # variance of the noise that makes a level continuous
        self.center.copy_(mean)
        self.variance.copy_((square / len(chosen) - mean.square()).clamp_min(0) + within)

    def needs(self, batch: int) -> dict[str, Need]:
        return {DEQUANTISE: Need("uniform", (batch, math.prod(self.shape)))}

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Return log densities of observations given y, from the given code c if there is one."""
        values = dequantise(inputs.x["x"].flatten(1), noise[DEQUANTISE], self.step)
        y = self.decode_first(self.get_first_code(inputs))
        base, log_det = self.to_base(values, y)
        variance = self.variance + MIN_VARIANCE
        distance = (values - self.at_middle(y) - self.center).square() / variance
        flow = log_det - 0.5 * (base.square() + math.log(2 * math.pi)).sum(-1)
        normal = -0.5 * (distance + variance.log() + math.log(2 * math.pi)).sum(-1)
        densities = StageDensities(*(self.to_level_density(each, values.shape[-1]) for each in (flow, normal)))
        return Output({}, {}, {}, {}, densities)

    def to_base(self, values: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return u [batch, size] of continuous values [batch, size] given y [batch, *shape], and log |det du/dx|."""
        scale = pad_variance(self.variance).sqrt()
        base, log_det = self.flow((values - self.at_middle(y) - self.center) / scale, self.encode_features(y))
        return base, log_det - scale.log().sum(-1)

    def from_base(self, base: Tensor, y: Tensor) -> Tensor:
        """Return the continuous values [batch, size] of u: the inverse of `to_base`."""
        scale = pad_variance(self.variance).sqrt()
        return self.at_middle(y) + self.center + scale * self.flow.inverse(base, self.encode_features(y))

    def at_middle(self, y: Tensor) -> Tensor:
        """Flatten observations, or y, and move them to the middle of their levels."""
        return y.flatten(1) * (1 - self.step) + 0.5 * self.step

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        return self.space.rename_blocks(self.encode_first(inputs.x["x"]))

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """Decode codes c, or c followed by u, through the flow."""
        c, base = self.split_code(code)
        return self.to_pixels(self.from_base(base, self.decode_first(c)))

    def split_code(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Return c, followed by the noise of the first stage's decoder if it has any, and u."""
        size = math.prod(self.shape)
        if code.shape[-1] == self.space.width:
            return code, code.new_zeros(*code.shape[:-1], size)
        return code[..., :-size], code[..., -size:]

    def prior_needs(self, count: int) -> dict[str, Need]:
        earlier = {FIRST + name: need for name, need in self.first.prior_needs(count).items()}
        return {**earlier, BASE: Need("normal", (count, math.prod(self.shape)))}

    def prior_codes(self, noise: Noise) -> Tensor:
        return torch.cat([self.first.prior_codes(select_prefix(FIRST, noise)), noise[BASE]], -1)

    def complete_code(self, code: Tensor, drawn: Tensor) -> Tensor:
        earlier, base = self.split_code(drawn)
        return torch.cat([self.first.complete_code(code, earlier), base], -1)


@objective(
    "ms-coupling",
    model="staged-flow",
    reference="msvae2020",
    stage="flow",
    network=choose_flow_networks,
    defaults={"latents": None, "likelihood": "gaussian"},
    trial={"z": None, "network": None, "decoder_couplings": 2, "features": 8},
)
class MSCoupling(StageObjective):
    """A coupling flow that refines a finished run: the exact log p(x|y), y the run's own reconstruction.

    `features` is the number of features of y that the flow sees. If the run's codes are labels, `given` names them in
    order, and y is decoded from the row's own labels; `circular` ones return to their first value after the last.
    """

    def check(self, dataset: FactorDataset, space: Space) -> None:
        if space.blocks:
            raise UsageError("A flow adds as many latents as an observation has values, no others: leave z= out.")
        if math.prod(dataset.shape) < 2:
            raise UsageError("A flow splits the values of an observation in two; these observations have only one.")

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the flow's log density, and the Normal's for the history."""
        return Terms({"flow": (out.extra.flow.mean(-1), -1.0), "normal": (out.extra.normal.mean(-1), 0.0)})
