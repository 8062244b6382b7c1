r"""Disentangled inferred priors (kumar2018): a penalty pulls the covariance of the codes towards the identity.

    loss = -E[log p(x|z)] + KL(q(z|x) || p(z)) + lambda_od sum_{i != j} C_ij^2 + lambda_d sum_i (C_ii - 1)^2

      DIP-VAE-I   C = Cov_x[mu(x)]
      DIP-VAE-II  C = Cov_x[mu(x)] + E_x[diag sigma^2(x)]    the covariance of z ~ q(z), by the law of total covariance

Both moments are those of the batch (divided by B). II averages the variances over the batch *before* it adds them to
the diagonal of C. The default weights are those of locatello2019's study (disentanglement_lib,
unsupervised_study_v1): lambda_od = 10, out of 1, 2, 5, 10, 20, 50, and lambda_d = 10 lambda_od in I, lambda_od in II.
"""

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.objectives.base import Context, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.types import Batch, Output, Terms, Weight


@objective("dip-vae-i", reference="kumar2018")
def dip_vae_i(
    out: Output, batch: Batch, context: Context, *, lambda_od: Weight = 10.0, lambda_d: Weight = 100.0
) -> Terms:
    """DIP-VAE-I: the ELBO minus a penalty on the distance of Cov[mu(x)] from the identity."""
    mean, _ = _moments(out, context.space)
    return _terms(out, batch, context, covariance(mean), lambda_od, lambda_d)


@objective("dip-vae-ii", reference="kumar2018")
def dip_vae_ii(
    out: Output, batch: Batch, context: Context, *, lambda_od: Weight = 10.0, lambda_d: Weight = 10.0
) -> Terms:
    """DIP-VAE-II: the ELBO minus a penalty on the distance of Cov[z], z ~ q(z), from the identity."""
    mean, variance = _moments(out, context.space)
    if any(block.coupled for block in context.space.blocks.values()):
        raise UsageError("dip-vae-ii needs codes with independent noise; use normal latents or dip-vae-i.")
    spread = covariance(mean) + torch.diag_embed(variance.mean(-2))
    return _terms(out, batch, context, spread, lambda_od, lambda_d)


def covariance(values: Tensor) -> Tensor:
    """Return the covariance [..., d, d] of the rows of values [..., batch, d], divided by their number."""
    centred = values - values.mean(-2, keepdim=True)
    return centred.transpose(-1, -2) @ centred / values.shape[-2]


def _moments(out: Output, space: Space) -> tuple[Tensor, Tensor]:
    """Return means and variances of the posteriors [..., batch, d]."""
    other = [name for name, block in space.blocks.items() if not isinstance(block, Normal)]
    if other:
        raise UsageError(f"DIP-VAE compares covariances, so every latent block must be normal; {other[0]!r} is not.")
    halves = [out.posterior[name].chunk(2, dim=-1) for name in space.blocks]
    mean, log_variance = (torch.cat(side, -1) for side in zip(*halves, strict=True))
    if mean.shape[-2] < 2:
        raise UsageError("DIP-VAE takes the covariance of a batch, which needs at least 2 rows.")
    return mean, log_variance.exp()


def _terms(out: Output, batch: Batch, context: Context, spread: Tensor, lambda_od: Weight, lambda_d: Weight) -> Terms:
    diagonal = spread.diagonal(dim1=-2, dim2=-1)
    off_diagonal = spread - torch.diag_embed(diagonal)
    penalties = {
        "off_diagonal": (off_diagonal.square().sum((-2, -1)), lambda_od),
        "diagonal": ((diagonal - 1).square().sum(-1), lambda_d),
    }
    return elbo_terms(out, batch, context) | Terms(penalties)
