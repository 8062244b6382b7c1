r"""InfoVAE (zhao2017, zhao2019): a maximum mean discrepancy matches the aggregate posterior to the prior.

    loss = -E[log p(x|z)] + (1 - alpha) KL(q(z|x) || p(z)) + (alpha + lambda - 1) MMD(q(z), p(z))

    MMD(q, p) = E k(z, z') + E k(y, y') - 2 E k(z, y),    z, z' ~ q and y, y' ~ p    (gretton2012)

There are as many draws of the prior as codes in the batch. Pairs of a row with itself are left out, so the estimate has
no bias and may be negative. Both kernels measure |z - y|^2 in units of its mean for two draws from a standard normal
prior of D dimensions, r = |z - y|^2 / (2 D bandwidth):

    imq       1 / (1 + r)    inverse multiquadratic, whose tails still pull at a code that lies far out (tolstikhin2018)
    gaussian  exp(-r)

With alpha = 1 no term penalises a code's information about its observation (MMD-VAE); alpha = 0 and lambda_mmd = 1 is
the VAE. A discrepancy lies between 0 and 2, so its weight is large; the default is ours.
"""

from typing import Literal

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.noise import Need
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.types import Batch, Output, Terms, Weight

Kernel = Literal["imq", "gaussian"]
PRIOR = "prior/"
"""Prefix of the noise for draws of the prior."""


@objective("info-vae", reference="zhao2017, zhao2019", signed=("alpha",))
class InfoVAE(Objective):
    """InfoVAE: E[log p(x|z)] - (1 - alpha) KL(q(z|x) || p(z)) - (alpha + lambda_mmd - 1) MMD(q(z), p(z))."""

    def __init__(
        self, *, alpha: Weight = 0.0, lambda_mmd: Weight = 1000.0, kernel: Kernel = "imq", bandwidth: float = 1.0
    ) -> None:
        if not bandwidth > 0:
            raise UsageError(f"bandwidth must be above 0, not {bandwidth}.")
        if not isinstance(alpha, Tensor) and alpha > 1:
            raise UsageError(f"alpha must be at most 1, not {alpha}: the KL has the weight 1 - alpha.")
        if not isinstance(alpha, Tensor) and not isinstance(lambda_mmd, Tensor) and alpha + lambda_mmd < 1:
            total = f"alpha + lambda_mmd must be at least 1, not {alpha + lambda_mmd:g}"
            raise UsageError(f"{total}: the weight of the discrepancy is this sum minus 1.")
        self.alpha, self.lambda_mmd, self.kernel, self.bandwidth = alpha, lambda_mmd, kernel, bandwidth

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        if batch < 2:
            raise UsageError("info-vae compares pairs of codes; use a batch of at least 2.")
        return {PRIOR + name: block.need(batch) for name, block in space.blocks.items()}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        space = context.space
        drawn = space.sample_prior(out.prior, {name: context.noise[PRIOR + name] for name in space.blocks})
        mmd = squared_mmd(space.join(out.sample), space.join(drawn), self.kernel, self.bandwidth)
        bound = elbo_terms(out, batch, context, beta=1.0 - self.alpha)
        return bound | Terms({"mmd": (mmd, self.alpha + self.lambda_mmd - 1.0)})


def squared_mmd(first: Tensor, second: Tensor, kernel: Kernel = "imq", bandwidth: float = 1.0) -> Tensor:
    """Return the unbiased squared MMD of rows [..., batch, d] of two samples, one value per leading index."""
    within = _mean_of_pairs(first, kernel, bandwidth) + _mean_of_pairs(second, kernel, bandwidth)
    return within - 2 * _kernel(first, second, kernel, bandwidth).mean((-2, -1))


def _mean_of_pairs(values: Tensor, kernel: Kernel, bandwidth: float) -> Tensor:
    """Return the mean of the kernel over pairs of different rows; k of a row with itself is 1."""
    rows = values.shape[-2]
    return (_kernel(values, values, kernel, bandwidth).sum((-2, -1)) - rows) / (rows * (rows - 1))


def _kernel(first: Tensor, second: Tensor, kernel: Kernel, bandwidth: float) -> Tensor:
    """Return k of every pair of rows [..., i, j], from distances, since differences of squared norms cancel."""
    distance = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    ratio = distance.square() / (2 * first.shape[-1] * bandwidth)
    return (-ratio).exp() if kernel == "gaussian" else 1 / (1 + ratio)
