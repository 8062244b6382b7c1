r"""The terms of the evidence lower bound; objectives weigh them.

With the aggregate posterior q(z) = 1/N sum_n q(z|x_n) and a factorised prior (chen2018, eq. 3; esmaeili2018, fig. 4),

    E_n KL(q(z|x_n) || p(z)) = MI + TC + dimension
      MI         E[log q(z|x) - log q(z)]                    index-code mutual information
      TC         E[log q(z) - sum_d log q(z_d)]              total correlation
      dimension  sum_d E[log q(z_d) - log p(z_d)]            dimension-wise KL

When the latent variables are grouped, TC splits into one term per level: between the groups and within them, and so on.
If a learned prior is not factorised, its own E_q[log p(z) / prod_g p(z_g)] and so on are subtracted from each of these,
so that the terms still add up to the KL; a term may then be negative.
Terms are sums over dimensions and means over the batch, in nats, one value per member.
"""

from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from unbraid.density import Aggregate, batch_aggregate
from unbraid.latents import Space
from unbraid.objectives.base import Context
from unbraid.types import Batch, Output, Terms, Weight

Estimator = Literal["stratified", "mss", "mws"]
"""Estimators of log q(z) from a batch (`unbraid.density.estimators`)."""


def reconstruction(out: Output, batch: Batch, context: Context) -> Tensor:
    """Return -E[log p(x|z)], summed over modalities."""
    batch_dims = next(iter(out.sample.values())).ndim - 1
    losses = []
    for name, likelihood in context.likelihoods.items():
        x = batch.x[name]
        losses.append(-likelihood.log_prob(out.decoded[name], x, x.ndim - batch_dims).mean(-1))
    return reduce(torch.add, losses)


def closed_form_kl(out: Output, space: Space) -> Tensor:
    """Return E_n KL(q(z|x_n) || p(z)) over the batch, in closed form for latents that have one."""
    return space.joint_kl(out.posterior, out.prior, out.sample).mean(-1)


def elbo_terms(out: Output, batch: Batch, context: Context, beta: Weight = 1.0) -> Terms:
    """Return the terms of the negative bound: reconstruction, and beta times the KL of the (last stage's) latents."""
    kl = closed_form_kl(out, context.space.last_stage)
    return Terms({"reconstruction": (reconstruction(out, batch, context), 1.0), "kl": (kl, beta)})


def total_correlation_names(space: Space) -> list[str]:
    """Return the names of the TC terms: `tc` without groups, `tc_between` and `tc_within` with one level of them."""
    depth = len(space.levels) - 1
    if depth == 1:
        return ["tc"]
    if depth == 2:
        return ["tc_between", "tc_within"]
    return [f"tc_{level}" for level in range(1, depth + 1)]


def divergences(out: Output, space: Space, aggregate: Aggregate) -> dict[str, Tensor]:
    """Return MI, one TC per level, and the dimension-wise KL, by Monte Carlo over the batch's samples."""
    posterior = space.joint_density(out.posterior, out.sample)
    prior = space.prior_levels(out.prior, out.sample)
    values = {"mi": (posterior - aggregate.joint).mean(-1), **total_correlations(space, aggregate)}
    if space.learned is not None and not space.learned.factorised:
        for name, coarse, fine in zip(total_correlation_names(space), prior[:-1], prior[1:], strict=True):
            values[name] = values[name] - (coarse - fine).mean(-1)
    values["dimension"] = (aggregate.leaves.sum(-1) - prior[-1]).mean(-1)
    return values


def total_correlations(space: Space, aggregate: Aggregate) -> dict[str, Tensor]:
    """Return the TC of the aggregate posterior on each level, independent of the prior."""
    sums = [level.sum(-1) for level in aggregate.levels]  # [..., batch] each, coarse to fine
    pairs = zip(total_correlation_names(space), sums[:-1], sums[1:], strict=True)
    return {name: (coarse - fine).mean(-1) for name, coarse, fine in pairs}


def group_information(out: Output, space: Space, estimator: Estimator, size: int) -> Tensor:
    """Return I(x; z_g) = E[log q(z_g|x) - log q(z_g)] of each group of the first level [..., groups].

    Without groups every variable is one, and the result is `leaf_information`.
    """
    if len(space.levels) == 2:
        return leaf_information(out, space, estimator, size)
    aggregate = batch_aggregate(space, out.posterior, out.sample, estimator, size)
    each = space.log_density(out.posterior, out.sample)  # [..., batch, leaves]
    posterior = []
    for group in space.levels[1]:
        coupling = space.coupling(out.posterior, out.sample, group)
        alone = each[..., list(group)].sum(-1)
        posterior.append(alone if coupling is None else alone + coupling)
    return (torch.stack(posterior, -1) - aggregate.levels[1]).mean(-2)


def leaf_information(out: Output, space: Space, estimator: Estimator, size: int) -> Tensor:
    """Return I(x; z_d) = E[log q(z_d|x) - log q(z_d)] of each variable [..., leaves], for `size` data points."""
    aggregate = batch_aggregate(space, out.posterior, out.sample, estimator, size)
    return (space.log_density(out.posterior, out.sample) - aggregate.leaves).mean(-2)
