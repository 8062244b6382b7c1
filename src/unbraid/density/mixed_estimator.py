r"""Log densities of an aggregate posterior whose blocks are partly Normal, by the fused kernels and matrix products.

Leaves and groups that are all Normal take the fused kernels. Every other group g needs its pairs,

    log q(z_g) = logsumexp_j [ N_ij + sum_l log q(z_il | x_j) + log w_ij ],

with N_ij for its Normal leaves, by one matrix product, and a sum over its leaves l of the other blocks. Memory is a few
matrices [..., i, j], where the chunked form has one for each leaf and each class.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from unbraid.density.chunks import sum_over_components
from unbraid.latents import Normal, Space
from unbraid.latents.positions import select

MAX_LOG_PRECISION = 32.0
"""Bound of -log sigma^2 in the product: a sigma of 1e-7, the spacing of float32 numbers near 1."""

NormalDensities = Callable[[Tensor, Tensor, Sequence[Sequence[int]]], Tensor]
"""Returns log densities [..., i, groups + D] of samples [..., i, D] under Normal posteriors [..., j, 2 D]."""


def is_mixed(space: Space) -> bool:
    """Return whether some blocks are Normal and others are not, and the leaves of all are independent."""
    normal = [type(block) is Normal for block in space.blocks.values()]
    return any(normal) and not all(normal) and not any(block.coupled for block in space.blocks.values())


def list_normal_leaves(space: Space) -> list[int]:
    """Return the leaves of all Normal blocks."""
    kinds = [type(block) for block in space.blocks.values() for _ in range(block.leaves)]
    return [leaf for leaf, kind in enumerate(kinds) if kind is Normal]


def join_normals(space: Space, posterior: Mapping[str, Tensor], sample: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return values [..., i, D] and parameters [..., j, 2 D] of all Normal blocks as one."""
    names = [name for name, block in space.blocks.items() if type(block) is Normal]
    if len(names) == 1:
        return sample[names[0]], posterior[names[0]]
    halves = zip(*(posterior[name].chunk(2, dim=-1) for name in names), strict=True)
    parameters = torch.cat([half for side in halves for half in side], dim=-1)
    return torch.cat([sample[name] for name in names], dim=-1), parameters


def mixed_densities(
    space: Space,
    posterior: Mapping[str, Tensor],
    sample: Mapping[str, Tensor],
    log_weights: Callable[[Tensor], Tensor],
    normal_densities: NormalDensities,
) -> tuple[Tensor, ...]:
    """Return log densities [..., i, groups] of each level of the space's groups.

    `log_weights(columns)` are the log weights [i or 1, columns] of some components; `normal_densities` knows its own.
    """
    position = {leaf: at for at, leaf in enumerate(list_normal_leaves(space))}
    groups = dict.fromkeys(tuple(sorted(group)) for level in space.levels for group in level)  # each once
    all_normal = [group for group in groups if all(leaf in position for leaf in group)]
    paired = [group for group in groups if group not in all_normal]

    # the kernels want a first group of all leaves, also if the space has none, and return single leaves last
    joint = tuple(position)
    fused = [joint, *(group for group in all_normal if len(group) > 1 and group != joint)]
    values, parameters = join_normals(space, posterior, sample)
    by_kernel = normal_densities(values, parameters, [[position[leaf] for leaf in group] for group in fused])
    by_pairs = _sum_paired_groups(space, posterior, sample, log_weights, paired)

    # unbind and stack: their gradients are one copy each, where those of indices are sorted sums
    found = dict(zip([*fused, *((leaf,) for leaf in joint)], by_kernel.unbind(-1), strict=True))
    found |= dict(zip(paired, by_pairs.unbind(-1), strict=True))
    levels = [*space.levels[:-1], [(leaf,) for leaf in range(space.leaves)]]  # leaves in their order, not the tree's
    return tuple(torch.stack([found[tuple(sorted(group))] for group in level], dim=-1) for level in levels)


def _sum_paired_groups(
    space: Space,
    posterior: Mapping[str, Tensor],
    sample: Mapping[str, Tensor],
    log_weights: Callable[[Tensor], Tensor],
    groups: Sequence[tuple[int, ...]],
) -> Tensor:
    """Return the log densities [..., i, groups] of groups that hold a leaf of a block that is not Normal."""
    normal = {leaf: at for at, leaf in enumerate(list_normal_leaves(space))}
    others = {leaf: at for at, leaf in enumerate(leaf for leaf in range(space.leaves) if leaf not in normal)}
    blocks = {name: block for name, block in space.blocks.items() if type(block) is not Normal}

    def sum_chunk(columns, parameters, values):
        each = [block.multiply_pairs(parameters[name], values[name]) for name, block in blocks.items()]
        pairs = [pair for part in each for pair in part.unbind(-2)]  # [..., i, chunk] by leaf
        normals, weights = join_normals(space, parameters, values), log_weights(columns)
        densities = []
        for group in groups:
            terms = [pairs[others[leaf]] for leaf in group if leaf in others]
            inside = [normal[leaf] for leaf in group if leaf in normal]
            if inside:
                terms.append(multiply_normal_pairs(*normals, inside))
            densities.append((reduce(torch.add, terms) + weights).logsumexp(dim=-1))
        return torch.stack(densities, dim=-1)

    numbers_per_pair = 2 + sum(block.numbers_per_pair for block in blocks.values())  # 2: Normal leaves in float64
    return sum_over_components(posterior, sample, numbers_per_pair, sum_chunk)


def multiply_normal_pairs(value: Tensor, parameters: Tensor, leaves: Sequence[int]) -> Tensor:
    r"""Return the joint log density of some leaves for every value i and posterior j [..., i, j], as a matrix product,

        N_ij = -1/2 sum_d [ w_jd z_id^2 - 2 w_jd m_jd z_id + w_jd m_jd^2 + log s_jd^2 + log 2 pi ],  w = 1 / s^2.

    The terms cancel to (z - m)^2 / s^2 and are z^2 / s^2 large. In float32 the rest would be lost for narrow
    posteriors. In float64 an error of 2^-53 z^2 / s^2 is left, which is less than what rounding z to float32 does to
    the same square, (2^-24 z / s)^2. Where s is below that rounding, the bound keeps the error near 0.01 z^2.
    """
    if len(leaves) < value.shape[-1]:
        width = value.shape[-1]
        value, parameters = select(value, leaves), select(parameters, [*leaves, *(width + leaf for leaf in leaves)])
    z = value.double()
    mean, log_variance = parameters.double().chunk(2, dim=-1)
    precision = (-log_variance).clamp(max=MAX_LOG_PRECISION).exp()
    constant = (precision * mean.square() + log_variance + math.log(2 * math.pi)).sum(-1, keepdim=True)
    rows = torch.cat([z.square(), z, torch.ones_like(z[..., :1])], dim=-1)
    columns = torch.cat([-0.5 * precision, precision * mean, -0.5 * constant], dim=-1)
    return (rows @ columns.transpose(-1, -2)).to(value.dtype)
