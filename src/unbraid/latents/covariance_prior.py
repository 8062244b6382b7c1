r"""A learned Gaussian covariance (esmaeili2018, section 5): p(z) = N(0, C) over all Normal blocks, C = L L^T.

    KL(N(m, D) || N(0, C)) = 1/2 [ tr(C^-1 D) + m^T C^-1 m - J + log det C - log det D ]

A subset of the variables has the matching submatrix of C. All linear algebra is written in tensor operations, because
torch's factorisations check their result on the host, which a recorded step on a GPU cannot do.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unbraid.latents.blocks import Block, Normal
from unbraid.latents.correlated_normal import CorrelatedNormal
from unbraid.latents.learned_priors import Prior, Tensors, prior
from unbraid.latents.positions import select

MIN_VARIANCE = 1e-12
"""Rounding could make a smaller variance negative."""


@prior("covariance", reference="esmaeili2018")
class CovariancePrior(Prior):
    """Gaussian with a learned covariance over all Normal variables; starts as the standard normal prior."""

    covers = Normal
    closed_form = True

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        super().__init__(blocks)
        self.shapes = {"factor": (len(self.leaves), len(self.leaves))}

    def factor(self, prior: Tensors) -> Tensor:
        """Return L [..., J, J]. Its parameter holds the log of the diagonal; the upper triangle is not used."""
        raw = self.parameters(prior)["factor"]
        return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())

    def covariance(self, prior: Tensors) -> Tensor:
        """Return C [..., J, J]."""
        factor = self.factor(prior)
        return product(factor, factor.mT)

    def marginal_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        """Return the log density N(0, C_dd)."""
        return _log_normal(self.join_blocks(values), self._variances(prior))

    def joint_density(self, prior: Tensors, values: Tensors, leaves: Sequence[int]) -> Tensor:
        """Return the log density N(0, C_gg)."""
        part = select(select(self.covariance(prior), leaves, -2), leaves)
        return log_gaussian(select(self.join_blocks(values), leaves), part)

    def covered_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        factor = self.factor(prior)
        inverse = inverse_triangular(factor)
        mean, log_variance = (
            torch.cat(side, -1) for side in zip(*(posterior[n].chunk(2, -1) for n in self.covered), strict=True)
        )
        weights = product(inverse.mT, inverse) * self._correlations(mean)  # of products of two standard deviations
        deviation = (0.5 * log_variance).exp()
        trace = (product(deviation, weights) * deviation).sum(-1)
        distance = product(mean, inverse.mT).square().sum(-1)
        log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        log_posterior = log_variance.sum(-1) + len(self.leaves)
        extra = sum(b.extra_kl for b in self.covered.values())
        return 0.5 * (trace + distance + log_determinant - log_posterior) + extra

    def leaf_kl(self, posterior: Tensors, prior: Tensors, values: Tensors) -> Tensor:
        """Return the KL of each Normal variable to N(0, C_dd)."""
        log_variance = self.split_blocks(self._variances(prior).log())
        marginals = dict(prior) | {n: torch.cat([torch.zeros_like(v), v], -1) for n, v in log_variance.items()}
        return torch.cat([b.kl(posterior[n], marginals[n], values[n]) for n, b in self.blocks.items()], -1)

    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        return self.split_blocks(product(self.join_blocks(noise), self.factor(prior).mT))

    def center(self, prior: Tensors) -> dict[str, Tensor]:
        return {name: b.center(prior[name]) for name, b in self.covered.items()}

    def _variances(self, prior: Tensors) -> Tensor:
        """Return the diagonal of C [..., 1, J]."""
        return self.factor(prior).square().sum(-1).unsqueeze(-2)

    def _correlations(self, like: Tensor) -> Tensor:
        """Return the correlations [J, J] of the posteriors' noise."""
        parts = []
        for b in self.covered.values():
            s = b.correlation if isinstance(b, CorrelatedNormal) else 0.0
            parts.append(s + (1 - s) * torch.eye(b.leaves, dtype=like.dtype, device=like.device))
        return torch.block_diag(*parts)


def product(first: Tensor, second: Tensor) -> Tensor:
    """Return first @ second in full precision, also if the networks' products use TF32."""
    return (first.unsqueeze(-1) * second.unsqueeze(-3)).sum(-2)


def log_gaussian(values: Tensor, covariance: Tensor) -> Tensor:
    """Return log N(values [..., batch, J]; 0, covariance [..., J, J]) as prod_i p(z_i | z_1 .. z_{i-1})."""
    total = torch.zeros_like(values[..., 0])
    for _ in range(values.shape[-1]):
        variance = covariance[..., :1, 0].clamp_min(MIN_VARIANCE)  # [..., 1]
        total = total + _log_normal(values[..., 0], variance)
        gain = covariance[..., 1:, 0] / variance  # regression of all others on this one
        values = values[..., 1:] - values[..., :1] * gain.unsqueeze(-2)
        covariance = covariance[..., 1:, 1:] - gain.unsqueeze(-1) * covariance[..., :1, 1:]
    return total


def inverse_triangular(factor: Tensor) -> Tensor:
    """Return the inverse of a lower triangular matrix [..., J, J], row by row."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    rows: list[Tensor] = []
    for i in range(factor.shape[-1]):
        known = eye[..., i, :]
        if rows:
            known = known - (factor[..., i, :i, None] * torch.stack(rows, -2)).sum(-2)
        rows.append(known / factor[..., i, i, None])
    return torch.stack(rows, -2)


def _log_normal(value: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (math.log(2 * math.pi) + variance.log() + value.square() / variance)
