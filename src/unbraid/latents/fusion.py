r"""Fusion of several modalities' posteriors of one latent: products and mixtures of Normals.

Each present modality m is an expert N(mu_m, v_m) on the shared latent c. With precisions w_m = 1 / v_m and the set A of
the present modalities (daunhawer2019, eq. 16 and 17, whose mean lacks its sum over m; wu2018; shi2019;
sutter2021):

    product               precision w = w_0 + sum_A w_m, mean sum_A w_m mu_m / w; w_0 = 1 for the prior's expert, or 0
    mixture               1/|A| sum_A N(mu_m, v_m)
    mixture of products   the mixture of the products of all 2^|A| - 1 subsets of A that are not empty

If A is empty, each of them is the prior N(0, 1): the product with the prior's expert by its formula, the others by
definition. Parameters are [..., M, D] and masks [..., M]; a masked expert influences neither values nor gradients, even
if it holds NaN.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class DiagonalNormal(NamedTuple):
    """Means and log variances [..., D] of independent coordinates."""

    mean: Tensor
    log_variance: Tensor


class ExpertMixture(NamedTuple):
    """A mixture of Normals: means and log variances [..., K, D], log weights [..., K], -inf if absent."""

    mean: Tensor
    log_variance: Tensor
    log_weight: Tensor

    def log_density(self, value: Tensor) -> Tensor:
        """Return the log density [...] of values [..., D]."""
        return (self.log_components(value) + self.log_weight).logsumexp(-1)

    def log_components(self, value: Tensor) -> Tensor:
        """Return the log density [..., K] of values [..., D] under each component."""
        standard = (value.unsqueeze(-2) - self.mean) * (-0.5 * self.log_variance).exp()
        return -0.5 * (standard.square() + self.log_variance + math.log(2 * math.pi)).sum(-1)

    def choose(self, uniform: Tensor) -> DiagonalNormal:
        """Return the component [..., D] that a number in (0, 1) [...] chooses."""
        ends = self.log_weight.exp().cumsum(-1)
        last = torch.isfinite(self.log_weight).cumsum(-1).argmax(-1)  # the weights may sum to just below 1
        place = torch.minimum((ends <= uniform.unsqueeze(-1)).sum(-1), last)
        place = place[..., None, None].expand(*place.shape, 1, self.mean.shape[-1])
        return DiagonalNormal(self.mean.gather(-2, place).squeeze(-2), self.log_variance.gather(-2, place).squeeze(-2))

    def draw(self, uniform: Tensor, noise: Tensor) -> Tensor:
        """Draw values [..., D] with numbers [...] that choose components, and standard normal noise [..., D]."""
        chosen = self.choose(uniform)
        return chosen.mean + (0.5 * chosen.log_variance).exp() * noise

    def repeat(self, count: int) -> "ExpertMixture":
        """Return the mixture [..., count, K, D], for `count` values each."""
        mean, log_variance = (
            part.unsqueeze(-3).expand(*part.shape[:-2], count, -1, -1) for part in (self.mean, self.log_variance)
        )
        log_weight = self.log_weight.unsqueeze(-2).expand(*self.log_weight.shape[:-1], count, -1)
        return ExpertMixture(mean, log_variance, log_weight)

    def moments(self) -> DiagonalNormal:
        """Return the Normal with the mixture's mean and variance [..., D]."""
        weight = self.log_weight.exp().unsqueeze(-1)
        mean = (weight * self.mean).sum(-2)
        spread = (self.mean - mean.unsqueeze(-2)).square() + self.log_variance.exp()
        return DiagonalNormal(mean, (weight * spread).sum(-2).log())


def product(mean: Tensor, log_variance: Tensor, mask: Tensor, prior_expert: bool = True) -> DiagonalNormal:
    """Return the product [..., D] of the present experts [..., M, D], with or without the prior's expert."""
    mean, log_variance = _blank(mean, log_variance, mask)
    prior = log_variance.new_zeros(())  # its log precision
    if not prior_expert:  # the prior replaces an empty product
        prior = torch.where(mask.any(-1), -torch.inf, prior)[..., None, None]
    experts = torch.where(mask.unsqueeze(-1).expand_as(log_variance), -log_variance, -torch.inf)
    logs = torch.cat([prior.expand_as(experts[..., :1, :]), experts], -2)
    return DiagonalNormal((logs.softmax(-2)[..., 1:, :] * mean).sum(-2), -logs.logsumexp(-2))


def mixture(mean: Tensor, log_variance: Tensor, mask: Tensor) -> ExpertMixture:
    """Return the mixture of the present experts [..., M, D], all equally likely."""
    return ExpertMixture(*_blank(mean, log_variance, mask), equal_weights(mask, mean.dtype))


def mixture_of_products(mean: Tensor, log_variance: Tensor, mask: Tensor, prior_expert: bool = True) -> ExpertMixture:
    """Return the mixture of the products of all subsets of the present experts [..., M, D]."""
    table = subsets(mask.shape[-1], mask.device)  # [S, M]
    chosen = table & mask.unsqueeze(-2)
    parts = product(mean.unsqueeze(-3), log_variance.unsqueeze(-3), chosen, prior_expert)
    return ExpertMixture(*parts, equal_weights((chosen == table).all(-1), mean.dtype))


def subsets(count: int, device: torch.device | str | None = None) -> Tensor:
    """Return all non-empty subsets of `count` things [2^count - 1, count]; row n - 1 is n in binary."""
    numbers = torch.arange(1, 2**count, device=device).unsqueeze(-1)
    return (numbers >> torch.arange(count, device=device)) & 1 == 1


def equal_weights(present: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the log weights [..., K] of a uniform choice among the present ones, or among all if none is."""
    present = present | ~present.any(-1, keepdim=True)
    return torch.where(present, -present.sum(-1, keepdim=True).to(dtype).log(), -torch.inf)


def _blank(mean: Tensor, log_variance: Tensor, mask: Tensor) -> DiagonalNormal:
    """Replace masked experts by standard Normals, before any arithmetic, so that no gradient passes."""
    mask = mask.unsqueeze(-1)
    return DiagonalNormal(torch.where(mask, mean, 0.0), torch.where(mask, log_variance, 0.0))
