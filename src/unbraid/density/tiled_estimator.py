r"""Log densities of an aggregate of Normal posteriors on a CPU, in tiles of pairs that stay in its cache.

With t = (z_i - m_j) / s_j, the log density of a leaf's pair is c_j - t^2 / 2, c_j = -1/2 [log s_j^2 + log 2 pi]. A tile
holds some members, leaves and rows i, and all components j. Operations on it write in place, and gradients compute it
again. Let r_ij be the share of component j in the density of a leaf, times that density's gradient, plus the same of
every group that holds the leaf. Then the gradients are

    -sum_j r_ij t / s_j  of z_i,    sum_i r_ij t / s_j  of m_j,    1/2 sum_i r_ij (t^2 - 1)  of log s_j^2.

No square is expanded, so narrow posteriors lose no digits. The chunked form, which autograd differentiates, writes
every intermediate tensor to memory, and takes three to seven times as long from 512 rows on.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.density.estimators import Weighting
from unbraid.density.groups import flatten_members, list_leaves, make_mask
from unbraid.operators import Operator

PAIRS_PER_THREAD = 2**17
"""Numbers in a tile for each thread: half a megabyte, so that a tile and its copy fit the cache of a core."""

LOG2_OF_E = math.log2(math.e)

MAX_HALF_LOG_PRECISION = 80.0
"""Bound of -1/2 log s^2, as in `unbraid.latents.blocks.standardise`."""


class _Mixture(NamedTuple):
    """Values z [M, D, i], Normal posteriors [M, D, j] as m, 1 / s and c, groups of leaves, and log weights."""

    values: Tensor
    mean: Tensor
    scale: Tensor
    constant: Tensor
    log_p: Tensor | None
    groups: list[tuple[int, ...]]
    weights: Weighting

    def allocate_totals(self, members: slice, rows: slice) -> Tensor:
        """Return zeros [groups, M, i, j] for the sums of groups in a block of members and rows."""
        sizes = members.stop - members.start, rows.stop - rows.start, self.mean.shape[-1]
        return self.values.new_zeros(len(self.groups), *sizes)

    def standardise(self, members: slice, leaves: slice, rows: slice) -> Tensor:
        """Return t [M, D, i, j] of a tile."""
        values, mean = self.values[members, leaves, rows, None], self.mean[members, leaves, None]
        return torch.sub(values, mean).mul_(self.scale[members, leaves, None])

    def measure(self, members: slice, leaves: slice, t: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the log density of each pair of a tile."""
        return torch.addcmul(self.constant[members, leaves, None], t, t, value=-0.5, out=out)

    def measure_for_groups(self, members: slice, leaves: slice, rows: slice, totals: Tensor) -> Tensor:
        """Return the log density of each pair of a tile, and add it to the totals of the groups that hold its leaf."""
        t = self.standardise(members, leaves, rows)
        pairs = self.measure(members, leaves, t, out=t)
        for group, leaf in self.list_held(leaves):
            totals[group].add_(pairs[:, leaf])
        return pairs

    def list_held(self, leaves: slice) -> list[tuple[int, int]]:
        """Return each group with the position of each of its leaves in a tile."""
        inside = range(leaves.start, leaves.stop)
        return [(at, leaf - leaves.start) for at, group in enumerate(self.groups) for leaf in group if leaf in inside]

    def weigh(self, pairs: Tensor, rows: slice) -> Tensor:
        """Add to pairs [..., i, j] the log weights of their components, less that of most of them."""
        own, following, other = self.weights
        if self.log_p is not None:
            pairs.add_(self.log_p)
        if own != other:
            pairs.diagonal(rows.start, -2, -1).add_(own - other)
        if following != other:
            pairs.diagonal(rows.start + 1, -2, -1).add_(following - other)
            if rows.stop == pairs.shape[-1]:
                pairs[..., -1, 0].add_(following - other)
        return pairs


def _arrange(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float]
) -> _Mixture:
    """Return the mixture with rows and components last, so that a tile is made of adjacent numbers."""
    mean, log_variance = (half.transpose(1, 2).contiguous() for half in parameters.chunk(2, dim=-1))
    scale = (-0.5 * log_variance).clamp_(max=MAX_HALF_LOG_PRECISION).exp_()
    constant = -0.5 * (log_variance + math.log(2 * math.pi))
    groups = [list_leaves(mask) for mask in masks]
    return _Mixture(sample.transpose(1, 2).contiguous(), mean, scale, constant, log_p, groups, Weighting(*weights))


def _cut(length: int, step: int) -> Iterator[slice]:
    """Yield slices of a length, each of `step` or fewer, but at least one."""
    step = max(step, 1)
    yield from (slice(start, min(start + step, length)) for start in range(0, length, step))


def _plan_tiles(mixture: _Mixture) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Yield blocks of members and rows, each with the leaves of its tiles.

    A tile takes as many rows of one member as it has room for; if these are all, more leaves; then more members.
    """
    (members, leaves, rows), components = mixture.values.shape, mixture.mean.shape[-1]
    room = PAIRS_PER_THREAD * torch.get_num_threads()
    for some in _cut(members, room // (leaves * rows * components)):
        for few in _cut(rows, room // components):
            pairs_of_leaf = (some.stop - some.start) * (few.stop - few.start) * components
            yield some, few, list(_cut(leaves, room // pairs_of_leaf))


def _exponentiate(pairs: Tensor) -> Tensor:
    """Turn pairs into their exponentials, which torch's exp takes three times as long for, and ten where they are 0.

    That was measured with AVX-512. Near 0 the result is less exact, within 4e-6 of e^-87, which no sum of it shows.
    """
    return pairs.mul_(LOG2_OF_E).exp2_()


def _sum_pairs(pairs: Tensor) -> Tensor:
    """Return the logarithm [...] of a sum of exponentials over the last axis, which it overwrites."""
    highest = pairs.amax(-1, keepdim=True)
    highest.masked_fill_(highest == -math.inf, 0.0)  # every density is 0, and so is their sum
    return _exponentiate(pairs.sub_(highest)).sum(-1).log_().add_(highest.squeeze(-1))


def _share(pairs: Tensor, densities: Tensor, gradient: Tensor) -> Tensor:
    """Turn pairs [..., j] into the share of each component in the density [...], times the density's gradient."""
    finite = densities.masked_fill(densities == -math.inf, 0.0)
    return _exponentiate(pairs.sub_(finite.unsqueeze(-1))).mul_(gradient.unsqueeze(-1))


@Operator
def tile_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float]
) -> Tensor:
    """Return log densities [M, groups + D, i] of samples [M, i, D] under posteriors [M, j, 2 D], less log weights."""
    mixture = _arrange(sample, parameters, log_p, masks, weights)
    count = len(mixture.groups)
    densities = sample.new_empty(sample.shape[0], count + sample.shape[2], sample.shape[1])
    for members, rows, tiles in _plan_tiles(mixture):
        totals = mixture.allocate_totals(members, rows)
        for leaves in tiles:
            pairs = mixture.measure_for_groups(members, leaves, rows, totals)
            of_leaves = slice(count + leaves.start, count + leaves.stop)
            densities[members, of_leaves, rows] = _sum_pairs(mixture.weigh(pairs, rows))
        densities[members, :count, rows] = _sum_pairs(mixture.weigh(totals, rows)).transpose(0, 1)
    return densities


@tile_densities.register_fake
def _(sample: Tensor, parameters: Tensor, log_p: Any, masks: Sequence[int], weights: Any) -> Tensor:
    return sample.new_empty(sample.shape[0], len(masks) + sample.shape[2], sample.shape[1])


@Operator
def tile_densities_backward(
    gradient: Tensor, densities: Tensor, sample: Tensor, parameters: Tensor, log_p: Tensor | None,
    masks: Sequence[int], weights: Sequence[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return gradients of the samples [M, i, D] and of the posteriors [M, j, 2 D]."""
    with torch.autocast("cpu", enabled=False):
        return _compute_gradients(gradient, densities, _arrange(sample, parameters, log_p, masks, weights))


def _compute_gradients(gradient: Tensor, densities: Tensor, mixture: _Mixture) -> tuple[Tensor, Tensor]:
    """Return gradients of the samples [M, i, D] and of the posteriors [M, j, 2 D]."""
    count = len(mixture.groups)
    of_values, of_mean, of_log_variance = map(torch.zeros_like, (mixture.values, mixture.mean, mixture.mean))
    for members, rows, tiles in _plan_tiles(mixture):
        totals = mixture.allocate_totals(members, rows)
        for leaves in tiles:
            mixture.measure_for_groups(members, leaves, rows, totals)
        of_groups = (tensor[members, :count, rows].transpose(0, 1) for tensor in (densities, gradient))
        _share(mixture.weigh(totals, rows), *of_groups)
        for leaves in tiles:
            of_leaves = members, slice(count + leaves.start, count + leaves.stop), rows
            t = mixture.standardise(members, leaves, rows)
            shares = mixture.weigh(mixture.measure(members, leaves, t), rows)
            _share(shares, densities[of_leaves], gradient[of_leaves])
            for group, leaf in mixture.list_held(leaves):
                shares[:, leaf].add_(totals[group])
            of_log_variance[members, leaves] -= shares.sum(-2)
            shares.mul_(t)
            of_values[members, leaves, rows] = (shares @ mixture.scale[members, leaves, :, None]).squeeze(-1)
            of_mean[members, leaves] += shares.sum(-2)
            of_log_variance[members, leaves] += shares.mul_(t).sum(-2)
    of_parameters = torch.cat([of_mean.mul_(mixture.scale), of_log_variance.mul_(0.5)], dim=1)
    return of_values.neg_().transpose(1, 2).contiguous(), of_parameters.transpose(1, 2).contiguous()


@tile_densities_backward.register_fake
def _(gradient: Tensor, densities: Tensor, sample: Tensor, parameters: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    return sample.new_empty(sample.shape), parameters.new_empty(parameters.shape)


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    sample, parameters, log_p, ctx.masks, ctx.weights = inputs
    ctx.save_for_backward(output, sample, parameters, log_p)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return gradients of the samples and the posteriors; log_p needs none."""
    differentiate: Callable[..., Any] = _differentiate_again if torch.is_grad_enabled() else tile_densities_backward
    return *differentiate(gradient, *ctx.saved_tensors, ctx.masks, ctx.weights), None, None, None


def _differentiate_again(
    gradient: Tensor, _: Tensor, sample: Tensor, parameters: Tensor, log_p: Tensor | None,
    masks: Sequence[int], weights: Sequence[float],
) -> list[Tensor | None]:  # fmt: skip
    """Return gradients that have gradients themselves, from the tensor of all pairs."""
    inputs = sample.view_as(sample), parameters.view_as(parameters)  # so that neither is reached through the other
    densities = _sum_all_pairs(_arrange(*inputs, log_p, masks, weights))
    wanted = [each for each in inputs if each.requires_grad]
    gradients = iter(torch.autograd.grad(densities, wanted, gradient, create_graph=True))
    return [next(gradients) if each.requires_grad else None for each in inputs]


def _sum_all_pairs(mixture: _Mixture) -> Tensor:
    """Return what `tile_densities` does, from one tensor of all pairs, whose steps autograd knows."""
    t = (mixture.values[..., None] - mixture.mean[:, :, None]) * mixture.scale[:, :, None]
    pairs = mixture.constant[:, :, None] - t.square() / 2
    rows, components = pairs.shape[-2:]
    log_weights = mixture.weigh(pairs.new_zeros(rows, components), slice(0, rows))
    totals = [pairs[:, list(group)].sum(1, keepdim=True) for group in mixture.groups]
    return (torch.cat([*totals, pairs], dim=1) + log_weights).logsumexp(-1)


tile_densities.register_autograd(_differentiate, setup_context=_save_context)


def log_densities(
    sample: Tensor,
    mean_and_log_variance: Tensor,
    groups: Sequence[Sequence[int]],
    weights: Weighting,
    log_p: Tensor | None = None,
) -> Tensor:
    """Return log densities of samples [..., i, D] under mixtures of posteriors [..., j, 2 D], by group and by leaf.

    The result is [..., i, groups + D]. `weights` are the log weights of j = i, of j = i + 1 (mod B) and of all others;
    `log_p` [j], if given, is added to them.
    """
    lead, samples, parameters = flatten_members(sample, mean_and_log_variance)
    if mean_and_log_variance.ndim == 2 and len(set(weights)) == 1:  # all members share the components: they are rows
        samples, parameters = samples.flatten(0, 1)[None], mean_and_log_variance[None]
    densities = tile_densities(samples, parameters, log_p, [make_mask(group) for group in groups], list(weights))
    return (densities + weights.other).transpose(-1, -2).reshape(*lead, sample.shape[-2], densities.shape[1])
