r"""Jacobian supervision (lezama2019): a student with more latents keeps what its teacher's c mean.

    MSE(x, D_S(c', z)) + l_y MSE(c', c) + l_diff MSE(D_S(c_2, z) - D_S(c, z), D_T(c_2) - D_T(c)) + l_xcov XCov(c', z)

with c the teacher's code of a row, c_2 that of another row, and c', z the student's. To first order both differences
are Jacobians times c_2 - c, so the third term asks for equal Jacobians with respect to c without computing them. XCov
is half the sum of the squared covariances of all pairs of a c' and a z over the batch (cheung2014).

MSE is a mean over pixels or latents, as in the paper, whose weights have no meaning for sums.
"""

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.models.student import OTHER, STUDENT, TEACHER
from unbraid.objectives.base import Context, Objective, objective
from unbraid.types import Batch, Output, Terms, Weight


@objective(
    "jacobian-student",
    model="student",
    year=2019,
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
        super().__init__(self.student_terms)

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Pairs are made of its rows."""
        self.dataset = dataset

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Beside each row the one before it in the whole batch, whichever process has that."""
        assert self.dataset is not None
        return {OTHER: self.dataset.images(batch.index.roll(1, -1)).to(batch.x["x"].dtype)}

    def student_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """What is not reconstructed, not the teacher's code, not moved as it moves, and not apart."""
        x = batch.x["x"]
        image = context.likelihoods["x"].mean(out.decoded["x"])
        moved, wanted = out.decoded[STUDENT][""], out.decoded[TEACHER][""]
        own, given = (_codes(part, list(out.prior)) for part in (out.posterior, out.prior))
        others = _codes(out.posterior, [name for name in out.posterior if name not in out.prior])
        return Terms(
            {
                "reconstruction": (_error(image, x), 1.0),
                "codes": (_error(own, given), self.weight_codes),
                "jacobian": (_error(moved, wanted), self.weight_jacobian),
                "cross_covariance": (cross_covariance(own, others), self.weight_covariance),
            }
        )


def _codes(posterior: dict[str, Tensor], blocks: list[str]) -> Tensor:
    """Means [member, batch, width] of some Normal blocks."""
    return torch.cat([posterior[name].chunk(2, -1)[0] for name in blocks], -1)


def _error(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of each member."""
    return (first - second).square().flatten(1).mean(-1)


def cross_covariance(c: Tensor, z: Tensor) -> Tensor:
    """1/2 sum_ij Cov(c_i, z_j)^2 over the batch, of codes [..., batch, width]."""
    centred = [part - part.mean(-2, keepdim=True) for part in (c, z)]
    covariance = centred[0].transpose(-1, -2) @ centred[1] / c.shape[-2]
    return 0.5 * covariance.square().sum((-2, -1))
