r"""A second stage that decodes codes instead of refining y (msvae2020's ablations, appendix L).

    loss = -E[log p(x|c, z)] + beta KL(q(z|x - y) || p(z)),    c and y = E p(y|c) of a frozen first stage

p(x|c, z) is an ordinary decoder of [c, z]. Dense and convolutional layers mix c and z from the start; in
`conv-modulated` z only modulates. Without `residual` z comes from x.
"""

from typing import Any

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.models.base import model, run_encoder
from unbraid.models.recentre import Frame
from unbraid.models.staged import StageOnCodes
from unbraid.networks.refiners import choose_stage_networks
from unbraid.noise import Need
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.types import Batch, Inputs, Noise, Output, Shape, Terms, Weight

DEFAULTS = {"latents": "normal:5", "lr": 1e-4, "batch": 32}


@model("coded", reference="msvae2020")
class CodedStage(StageOnCodes):
    """A frozen model of q(c|x), an encoder of q(z|x - y) or q(z|x), and a decoder of p(x|c, z)."""

    def __init__(self, *parts: Any, residual: bool = True) -> None:
        super().__init__(*parts)
        self.residual, self.frame = residual, Frame(self.space.last_stage)

    def needs(self, batch: int) -> dict[str, Need]:
        return self.space.last_stage.needs(batch)

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Encode with both stages, sample z, decode. The prior is that of z only."""
        posterior, own = self.encode(inputs, noise), self.space.last_stage
        c = self.space.center(posterior)[..., : -own.width]
        sample = own.sample(posterior, noise)
        decoded = self.decode(torch.cat([c, own.join(sample)], -1))
        return Output(posterior, own.prior_of(posterior), sample, {"x": decoded})

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        x, own = inputs.x["x"], self.space.last_stage
        earlier = self.encode_first(x)
        observed = x - self.decode_first(self.first.space.center(earlier)) if self.residual else x
        flat = run_encoder(self.encoder, observed, sum(own.outputs.values()))
        return {**self.space.rename_blocks(earlier), **self.frame.posterior(own.split(flat, noise))}

    def recentre(self, dataset: FactorDataset, rows: Tensor) -> None:
        self.fit_frame(self.frame, dataset, rows)

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        c, z = self.split_code(code)
        return super().decode(torch.cat([c, self.frame.code(z)], -1))


def code_networks(shape: Shape) -> dict[str, str]:
    """Return the names of a second stage's encoder and of an ordinary decoder for observations of a shape."""
    square = len(shape) == 3 and shape[1] == shape[2]
    decoder = {64: "conv-locatello", 32: "conv-small", 28: "conv-small"}.get(shape[-1]) if square else None
    return {"encoder": choose_stage_networks(shape)["encoder"], "decoder": decoder or "mlp"}


@objective("ms-code", model="coded", reference="msvae2020", stage="code", network=code_networks, defaults=DEFAULTS)
class MSCode(Objective):
    """A second stage on codes: E[log p(x|c, z)] - beta KL(q(z|x) || p(z)), c of a finished run, no y for the decoder.

    z comes from x - y, or without `residual` from x.
    """

    recentres = True

    def __init__(self, *, beta: Weight = 1.0) -> None:
        self.beta = beta

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        return elbo_terms(out, batch, context, self.beta)
