r"""Jacobian supervision (lezama2019): a student with more latents keeps the meaning of its teacher's codes c.

    loss = MSE(x, D_S(c', z)) + weight_codes MSE(c', c) + weight_covariance XCov(c', z)
         + weight_jacobian MSE(D_S(c_2, z) - D_S(c, z), D_T(c_2) - D_T(c))

with the student's code (c', z) = E_S(x), the frozen teacher's c = E_T(x), its c_2 of another row, and the decoders D_S
and D_T. To first order both differences are Jacobians times c_2 - c, so the last term asks for equal Jacobians with
respect to c without computing them. XCov is half the sum of the squared covariances of all pairs of a c' and a z over
the batch (cheung2014). MSE is a mean over pixels or latents, as in the paper, whose weights have no meaning for sums.

The teacher is the run that is refined, under `first`. Unlike a second stage, the student learns its own c.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unbraid.config import Choice
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.models.base import Model, model, run_encoder
from unbraid.models.staged import StageOnCodes
from unbraid.networks import Outputs
from unbraid.noise import Need
from unbraid.objectives.base import Context, Objective, objective
from unbraid.types import Batch, Inputs, Noise, Output, Shape, Terms, Weight

DEFAULTS = {"latents": "normal:5", "lr": 1e-4}
POINT_DEVIATION = 1e-3
"""Standard deviation of the Normals that represent the student's codes, which are points."""

OTHER = "other"
"""Name of the input that holds the other row of each pair, which must not depend on a process's share of the rows."""


class JacobianDifferences(NamedTuple):
    """Differences of a decoder's images at two codes [rows, *shape], for the student and for the teacher."""

    student: Tensor
    teacher: Tensor


@model("student", reference="lezama2019")
class Student(StageOnCodes):
    """A deterministic encoder from x to (c, z), and a deterministic decoder from (c, z) to x."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if any(not isinstance(block, Normal) or block.coupled for block in self.space.blocks.values()):
            raise UsageError("A student's codes are points: it and its teacher need independent normal latents.")

    @classmethod
    def network_widths(cls, space: Space, settings: Mapping[str, Any]) -> tuple[dict[str, int], int]:
        """The encoder outputs codes without a deviation; `make_encoder` adds those of c."""
        return {"z": space.width}, space.width

    @classmethod
    def make_encoder(cls, chosen: Choice, outputs: Outputs, shape: Shape, *first: Model) -> nn.Module:
        return super().make_encoder(chosen, {"c": first[0].space.width, **dict(outputs)}, shape)

    def needs(self, batch: int) -> dict[str, Need]:
        return {}

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        """Encode, decode, and compare images at the teacher's codes of two rows.

        The teacher's posterior takes the place of the prior.
        """
        x, center = inputs.x["x"], self.first.space.center
        code, earlier = run_encoder(self.encoder, x, self.space.width), self.encode_first(x)
        teacher, z = center(earlier), self.split_code(code)[1]
        other = center(self.encode_first(inputs.given[OTHER]))
        moved = self._image(torch.cat([other, z], -1)) - self._image(torch.cat([teacher, z], -1))
        differences = JacobianDifferences(moved, self.decode_first(other) - self.decode_first(teacher))
        prior, sample = self.space.rename_blocks(earlier), self.space.unjoin(code)
        return Output(self._points(code), prior, sample, {"x": self.decode(code)}, differences)

    def infer(self, inputs: Inputs, noise: Noise | None) -> dict[str, Tensor]:
        return self._points(run_encoder(self.encoder, inputs.x["x"], self.space.width))

    def _image(self, code: Tensor) -> Tensor:
        return self.likelihood.mean(self.decode(code))

    def _points(self, code: Tensor) -> dict[str, Tensor]:
        log_variance = 2 * math.log(POINT_DEVIATION)
        means = self.space.unjoin(code)
        return {name: torch.cat([mean, torch.full_like(mean, log_variance)], -1) for name, mean in means.items()}


@objective("jacobian-student", model="student", reference="lezama2019", stage="student", defaults=DEFAULTS)
class JacobianStudent(Objective):
    """Jacobian supervision: an autoencoder learns a finished run's codes, and how images move with them."""

    def __init__(
        self, *, weight_codes: Weight = 0.25, weight_jacobian: Weight = 0.1, weight_covariance: Weight = 1e-3
    ) -> None:
        self.weight_codes, self.weight_jacobian, self.weight_covariance = (
            weight_codes,
            weight_jacobian,
            weight_covariance,
        )
        self.dataset: FactorDataset | None = None

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        self.dataset = dataset

    def given(self, batch: Batch) -> dict[str, Tensor]:
        """Return for each row the one before it in the whole batch, even if another process has that row."""
        assert self.dataset is not None
        return {OTHER: self.dataset.images(batch.index.roll(1, -1)).to(batch.x["x"].dtype)}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        x = batch.x["x"]
        image = context.likelihoods["x"].mean(out.decoded["x"])
        c, taught = (_means(part, list(out.prior)) for part in (out.posterior, out.prior))
        z = _means(out.posterior, [name for name in out.posterior if name not in out.prior])
        terms = {
            "reconstruction": (_mean_square(image, x), 1.0),
            "codes": (_mean_square(c, taught), self.weight_codes),
            "jacobian": (_mean_square(out.extra.student, out.extra.teacher), self.weight_jacobian),
            "cross_covariance": (cross_covariance(c, z), self.weight_covariance),
        }
        return Terms(terms)


def _means(posterior: dict[str, Tensor], blocks: list[str]) -> Tensor:
    return torch.cat([posterior[name].chunk(2, -1)[0] for name in blocks], -1)


def _mean_square(first: Tensor, second: Tensor) -> Tensor:
    return (first - second).square().flatten(1).mean(-1)


def cross_covariance(c: Tensor, z: Tensor) -> Tensor:
    """Return 1/2 sum_ij Cov(c_i, z_j)^2 over the batch, of codes [..., batch, width]."""
    c, z = (part - part.mean(-2, keepdim=True) for part in (c, z))
    covariance = c.transpose(-1, -2) @ z / c.shape[-2]
    return 0.5 * covariance.square().sum((-2, -1))
