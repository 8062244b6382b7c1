r"""Jacobian supervision (lezama2019): a student with more latents keeps the meaning of its teacher's c.

    loss = MSE(x, D_S(c', z)) + weight_codes MSE(c', c) + weight_covariance XCov(c', z)
         + weight_jacobian MSE(D_S(c_2, z) - D_S(c, z), D_T(c_2) - D_T(c))

with (c', z) = E_S(x) the student's code, c = E_T(x) the frozen teacher's, c_2 that of another row, and decoders D_S and
D_T. To first order both differences are Jacobians times c_2 - c, so the last term asks for equal Jacobians with
respect to c without computing them. XCov is half the sum of the squared covariances of all pairs of a c' and a z over
the batch (cheung2014). MSE is a mean over pixels or latents, as in the paper, whose weights have no meaning for sums.

The teacher is the run that is refined, under `first`. Unlike a second stage, the student learns c anew.
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

POINT_DEVIATION = 1e-3
"""Standard deviation of the Normals that stand for the student's codes, which are points."""

OTHER = "other"
"""Name of the given other row of each pair: which one it is must not depend on which rows a process has."""


class JacobianDifferences(NamedTuple):
    """How the images of the student's and of the teacher's decoder differ at two codes [rows, *shape]."""

    student: Tensor
    teacher: Tensor


@model("student", reference="lezama2019")
class Student(StageOnCodes):
    """(c, z) of x by one encoder, x of (c, z) by one decoder, both deterministic."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if any(not isinstance(block, Normal) or block.coupled for block in self.space.blocks.values()):
            raise UsageError("A student's codes are points, so it and its teacher must only have Normal latents.")

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
        """Encode, decode, and compare images at the teacher's codes of a row and of another one.

        The teacher's posterior stands in the prior's place: the student's is compared with it.
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
        """Return the student's codes by block, as Normals of next to no deviation."""
        return self._points(run_encoder(self.encoder, inputs.x["x"], self.space.width))

    def _image(self, code: Tensor) -> Tensor:
        return self.likelihood.mean(self.decode(code))

    def _points(self, code: Tensor) -> dict[str, Tensor]:
        log_variance = 2 * math.log(POINT_DEVIATION)
        means = self.space.unjoin(code)
        return {name: torch.cat([mean, torch.full_like(mean, log_variance)], -1) for name, mean in means.items()}


@objective(
    "jacobian-student",
    model="student",
    reference="lezama2019",
    stage="student",
    defaults={"latents": "normal:5", "lr": 1e-4},
)
class JacobianStudent(Objective):
    """Jacobian supervision: an autoencoder learns a finished run's codes, and to move its images by them alike."""

    def __init__(
        self, *, weight_codes: Weight = 0.25, weight_jacobian: Weight = 0.1, weight_covariance: Weight = 1e-3
    ) -> None:
        self.weight_codes, self.weight_jacobian = weight_codes, weight_jacobian
        self.weight_covariance = weight_covariance
        self.dataset: FactorDataset | None = None

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        self.dataset = dataset

    def given(self, batch: Batch) -> dict[str, Tensor]:
        """Return for each row the one before it in the whole batch, whichever process has that."""
        assert self.dataset is not None
        return {OTHER: self.dataset.images(batch.index.roll(1, -1)).to(batch.x["x"].dtype)}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        x = batch.x["x"]
        image = context.likelihoods["x"].mean(out.decoded["x"])
        c, taught = (_means(part, list(out.prior)) for part in (out.posterior, out.prior))
        z = _means(out.posterior, [name for name in out.posterior if name not in out.prior])
        return Terms(
            {
                "reconstruction": (_mean_square(image, x), 1.0),
                "codes": (_mean_square(c, taught), self.weight_codes),
                "jacobian": (_mean_square(out.extra.student, out.extra.teacher), self.weight_jacobian),
                "cross_covariance": (cross_covariance(c, z), self.weight_covariance),
            }
        )


def _means(posterior: dict[str, Tensor], blocks: list[str]) -> Tensor:
    """Return the means [member, batch, width] of some Normal blocks."""
    return torch.cat([posterior[name].chunk(2, -1)[0] for name in blocks], -1)


def _mean_square(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean squared difference of each member."""
    return (first - second).square().flatten(1).mean(-1)


def cross_covariance(c: Tensor, z: Tensor) -> Tensor:
    """Return 1/2 sum_ij Cov(c_i, z_j)^2 over the batch, of codes [..., batch, width]."""
    centred = [part - part.mean(-2, keepdim=True) for part in (c, z)]
    covariance = centred[0].transpose(-1, -2) @ centred[1] / c.shape[-2]
    return 0.5 * covariance.square().sum((-2, -1))
