"""Log densities of an aggregate of Normal posteriors by Triton kernels, in memory linear in the batch.

The kernels are two operators that `torch.compile` leaves whole and a CUDA graph captures: densities, and their
gradients, which recompute the pairwise terms. All sums are taken in the same order in every run.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from unbraid.density import packing_kernel, shared_kernels, triton_kernels as kernels
from unbraid.density.estimators import Weighting
from unbraid.density.groups import flatten_members, list_leaves, make_mask
from unbraid.errors import UsageError
from unbraid.kernels import launch
from unbraid.operators import Operator

PADDING_MULTIPLE = 128
"""Packed rows and components are padded to a multiple of this, the largest block, so that no load needs a mask."""

MAX_UNROLLED_LEAVES = 16
"""The most leaves that a program holds in registers at once; a wider group takes several programs."""

PROGRAMS_TO_FILL_GPU = 2112
"""Programs for groups, and as many for leaves, that fill a GPU; with fewer, the streamed axis is split."""

MAX_SHARED_LEAVES = 16
"""The most leaves of the shared form, which holds all of them in registers."""


class WarpTile(NamedTuple):
    """Work of a warp: rows (or components) streamed in one step, and a block of components (or rows) that it holds.

    Fewer than 32 are streamed, so that all threads read the same ones. Results do not depend on the block.
    """

    stream: int
    block: int


class KernelTiles(NamedTuple):
    """Tiles of one kernel, for groups and for single leaves, and the most registers of a thread."""

    group: WarpTile
    leaf: WarpTile
    registers: int


FORWARD = KernelTiles(WarpTile(2, 64), WarpTile(8, 64), registers=128)
BACKWARD = KernelTiles(WarpTile(2, 64), WarpTile(8, 64), registers=168)


class SharedTiles(NamedTuple):
    """Tile of one kernel of the shared form, its programs that fill a GPU, and the most registers of a thread."""

    tile: WarpTile
    programs: int
    registers: int


SHARED_FORWARD = SHARED_BACKWARD = SharedTiles(WarpTile(4, 64), 1056, registers=255)

_ONE_WARP: dict[str, Any] = {"num_warps": 1}


def _ceil_div(count: int, size: int) -> int:
    return (count + size - 1) // size


class ProblemSize(NamedTuple):
    """The sizes of one call: members, rows i, components j and leaves D."""

    members: int
    rows: int
    components: int
    leaves: int

    @property
    def rows_padded(self) -> int:
        return _ceil_div(self.rows, PADDING_MULTIPLE) * PADDING_MULTIPLE

    @property
    def components_padded(self) -> int:
        return _ceil_div(self.components, PADDING_MULTIPLE) * PADDING_MULTIPLE

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Arguments that every kernel takes."""
        return self.rows, self.components, self.rows_padded, self.components_padded

    def can_share(self, masks: Sequence[int]) -> bool:
        """Return whether the shared form applies: the only group has all of a few leaves, and j = i for each row."""
        fits = self.leaves <= MAX_SHARED_LEAVES and self.rows == self.components
        return fits and list(masks) == [make_mask(range(self.leaves))]

    def allocate_outputs(
        self, sample: Tensor, groups: int, shared: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return empty densities, their binary logarithms, packed rows, packed components, and scores."""
        members, rows, _, leaves = self
        more = leaves if shared else 0
        return (
            sample.new_empty(members, groups + leaves, rows),
            sample.new_empty(members, groups + leaves + (1 if more else 0), self.rows_padded),
            sample.new_empty(members, leaves, self.rows_padded),
            sample.new_empty(members, 3 * leaves + groups + more, self.components_padded),
            sample.new_empty(members, (groups + 1) * leaves, rows),
        )


def _find_size(sample: Tensor, parameters: Tensor) -> ProblemSize:
    members, rows, leaves = sample.shape
    return ProblemSize(members, rows, parameters.shape[1], leaves)


class ChunkPlan(NamedTuple):
    """Length and number of chunks of the streamed axis, for groups and for single leaves."""

    group_chunk: int
    group_splits: int
    leaf_chunk: int
    leaf_splits: int


def _plan_chunks(size: ProblemSize, groups: int, held: int, streamed: int) -> ChunkPlan:
    """Return chunks (of a multiple of 16) short enough to fill a GPU, independent of the tiles."""

    def cut(blocks: int) -> tuple[int, int]:
        chunk = _ceil_div(streamed, _ceil_div(PROGRAMS_TO_FILL_GPU, blocks * size.members) * 16) * 16
        return chunk, _ceil_div(streamed, chunk)

    return ChunkPlan(*cut(_ceil_div(held, 64) * groups), *cut(_ceil_div(held, 128) * size.leaves))


def _allocate_sums(like: Tensor, shape: tuple[int, ...], masks: Sequence[int], leaves: int) -> Tensor:
    """Return an empty tensor if each group writes to all leaves, else zeros."""
    covered = all(len(list_leaves(mask)) == leaves for mask in masks)
    return like.new_empty(shape) if covered else like.new_zeros(shape)


def _weigh(weights: Weighting) -> tuple[float, float, bool]:
    """Return the excess of the own and the next component's binary log weight over the others', and if there is any."""
    own, following = ((weight - weights.other) * math.log2(math.e) for weight in (weights.own, weights.next))
    return own, following, not weights.own == weights.next == weights.other


def _launch(
    kernel: Any, tiles: KernelTiles, size: ProblemSize, masks: Sequence[int], plan: ChunkPlan, held: int,
    weights: Weighting, tensors: Sequence[Tensor], writes: Sequence[Tensor], **constants: Any,
) -> None:  # fmt: skip
    """Run a kernel for each group; the first launch also does the single leaves."""
    single = tiles.leaf
    own, following, unequal = _weigh(weights)
    for group, mask in enumerate(masks):
        leaves = list_leaves(mask)
        wide = len(leaves) > 10  # a smaller block and all available registers keep sums out of slower memory
        tile = tiles.group._replace(block=32) if wide else tiles.group
        limits = {} if torch.version.hip else {"maxnreg": 255 if wide else tiles.registers}
        for first in range(0, len(leaves), MAX_UNROLLED_LEAVES):
            unrolled = leaves[first : first + MAX_UNROLLED_LEAVES]
            others = make_mask([leaf for leaf in leaves if leaf not in unrolled])
            cuts = plan if group == first == 0 else plan._replace(leaf_splits=0)
            programs = _ceil_div(held, tile.block) * cuts.group_splits
            programs += _ceil_div(held, single.block) * cuts.leaf_splits * size.leaves
            launch(
                kernel, (programs, size.members), *tensors, *size.lengths, *cuts, own, following, group,
                LEAVES=unrolled, COUNT=len(unrolled), OTHERS=others, GROUPS=len(masks), D=size.leaves,
                UNEQUAL=unequal, GROUP_STREAM=tile.stream, GROUP_BLOCK=tile.block, LEAF_STREAM=single.stream,
                LEAF_BLOCK=single.block, **_ONE_WARP, **limits, **constants, writes=writes,
            )  # fmt: skip


def _sum_groups(
    size: ProblemSize, weights: Weighting, masks: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor],
    with_scores: bool,
) -> None:  # fmt: skip
    """Compute densities, their binary logarithms and scores from packed rows and components, for any groups."""
    rows, scores = inputs[0], outputs[2]
    plan = _plan_chunks(size, len(masks), held=size.rows, streamed=size.components)
    sums = plan.group_splits, size.members, len(masks), 2 + size.leaves, size.rows_padded
    grouped = _allocate_sums(rows, sums, masks, size.leaves)
    single = rows.new_empty(plan.leaf_splits, size.members, size.leaves, 3, size.rows_padded)
    _launch(
        kernels.forward, FORWARD, size, masks, plan, size.rows, weights, (*inputs, grouped, single), (grouped, single),
        SCORES=with_scores,
    )  # fmt: skip
    launch(
        kernels.combine, (_ceil_div(size.rows, 32), scores.shape[1], size.members),
        grouped, single, *outputs, size.rows, size.rows_padded, plan.group_splits, plan.leaf_splits,
        GROUPS=len(masks), D=size.leaves, SCORES=with_scores, TILE=16, BLOCK=32, **_ONE_WARP, writes=outputs,
    )  # fmt: skip


def _plan_shared(tiles: SharedTiles, size: ProblemSize) -> tuple[WarpTile, int, int, dict[str, Any]]:
    """Return the tile of the shared form, length and number of chunks, and compiler options.

    A chunk is a multiple of 8, the most rows that any of the kernels streams at once.
    """
    wide = size.leaves > 10
    tile = tiles.tile._replace(block=32) if wide else tiles.tile
    splits = max(1, round(tiles.programs / (_ceil_div(size.rows, tile.block) * size.members)))
    chunk = max(16, _ceil_div(size.rows, splits * 8) * 8)
    limits = {} if torch.version.hip else {"maxnreg": 255 if wide else tiles.registers}
    return tile, chunk, _ceil_div(size.rows, chunk), _ONE_WARP | limits


def _sum_shared(
    size: ProblemSize, weights: Weighting, inputs: Sequence[Tensor], outputs: Sequence[Tensor], with_scores: bool
) -> None:
    """Compute the same as `_sum_groups` for all leaves and single leaves, which share what they compute of pairs."""
    (rows, components, table), normaliser = inputs, outputs[1]
    tile, chunk, splits, options = _plan_shared(SHARED_FORWARD, size)
    own, following, unequal = _weigh(weights)
    partial = rows.new_empty(splits, size.members, 1 + 3 * size.leaves, size.rows_padded)
    constants: dict[str, Any] = {"D": size.leaves, "UNEQUAL": unequal, "SCORES": with_scores}
    launch(
        shared_kernels.forward_shared, (_ceil_div(size.rows, tile.block), splits, size.members),
        rows, table, normaliser, partial, size.rows, size.rows_padded, size.components_padded, chunk, own, following,
        **constants, STREAM=tile.stream, BLOCK=tile.block, **options, writes=(partial,),
    )  # fmt: skip
    launch(
        shared_kernels.combine_shared, (_ceil_div(size.rows, 32), 2 * size.leaves, size.members),
        partial, rows, components, *outputs, size.rows, size.rows_padded, size.components_padded, splits,
        own, following, **constants, TILE=16, BLOCK=32, **_ONE_WARP, writes=outputs,
    )  # fmt: skip


def _differentiate_shared(size: ProblemSize, weights: Weighting, inputs: Sequence[Tensor], of_sample: Tensor) -> Tensor:
    """Write gradients of samples, and return parts [chunks, M, 2 D, j] of the components' gradients."""
    grad, normaliser, rows, components, scores = inputs
    tile, chunk, splits, options = _plan_shared(SHARED_BACKWARD, size)
    own, following, unequal = _weigh(weights)
    padded = rows.new_empty(size.members, 1 + size.leaves, size.rows_padded)
    table = rows.new_empty(size.members, 2 * size.leaves + 2, size.rows_padded)
    launch(
        shared_kernels.backward_rows_shared, (_ceil_div(size.rows_padded, 128), size.leaves, size.members),
        grad, scores, normaliser, rows, padded, table, of_sample, size.rows, size.rows_padded, *grad.stride(),
        D=size.leaves, STREAM=tile.stream, BLOCK=128, writes=(padded, table, of_sample),
    )  # fmt: skip
    partial = rows.new_empty(splits, size.members, 2 * size.leaves, size.components_padded)
    launch(
        shared_kernels.backward_shared, (_ceil_div(size.rows, tile.block), splits, size.members),
        table, padded, normaliser, rows, components, partial, size.rows, size.rows_padded, size.components_padded,
        chunk, own, following, D=size.leaves, UNEQUAL=unequal, STREAM=tile.stream, BLOCK=tile.block,
        **options, writes=(partial,),
    )  # fmt: skip
    return partial


def _differentiate_groups(
    size: ProblemSize, weights: Weighting, masks: Sequence[int], inputs: Sequence[Tensor], of_sample: Tensor
) -> Tensor:
    """Write gradients of samples, and return parts of the components' gradients, for any groups."""
    grad, normaliser, rows, components, scores = inputs
    plan = _plan_chunks(size, len(masks), held=size.components, streamed=size.rows)
    parts = plan.group_splits * len(masks) + plan.leaf_splits, size.members, 2 * size.leaves, size.components_padded
    partial = _allocate_sums(grad, parts, masks, size.leaves)
    padded = torch.empty_like(normaliser)
    launch(
        kernels.backward_rows, (_ceil_div(size.rows_padded, 128), size.leaves, size.members),
        grad, scores, padded, of_sample, size.rows, size.rows_padded, *grad.stride(),
        MASK=tuple(masks), GROUPS=len(masks), D=size.leaves, BLOCK=128, writes=(padded, of_sample),
    )  # fmt: skip
    _launch(
        kernels.backward, BACKWARD, size, masks, plan, size.components, weights,
        (padded, normaliser, rows, components, partial), (partial,),
    )  # fmt: skip
    return partial


@Operator
def aggregate_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float],
    with_scores: bool = True, shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return log densities [M, groups + D, i] of samples [M, i, D] under posteriors [M, j, 2 D].

    The other outputs are for the gradients. `shared` takes the shared form, where it applies.
    """
    size, weighting = _find_size(sample, parameters), Weighting(*weights)
    out, normaliser, rows, components, scores = size.allocate_outputs(sample, len(masks), shared)
    table = sample.new_empty(size.members, 3 * size.leaves + 1, size.components_padded) if shared else rows
    launch(
        packing_kernel.pack, (_ceil_div(max(size.rows_padded, size.components_padded), 32), size.members),
        sample, parameters, sample if log_p is None else log_p, rows, components, normaliser, table,
        *size.lengths, *sample.stride(), *parameters.stride(), weighting.other, MASK=tuple(masks), GROUPS=len(masks),
        D=size.leaves, WIDTH=triton.next_power_of_2(size.leaves), HAS_LOG_P=log_p is not None,
        SHARED=SHARED_FORWARD.tile.stream if shared else 0, BLOCK=32, writes=(rows, components, normaliser),
    )  # fmt: skip
    if shared:
        _sum_shared(size, weighting, (rows, components, table), (out, normaliser, scores), with_scores)
    else:
        _sum_groups(size, weighting, masks, (rows, components), (out, normaliser, scores), with_scores)
    return out, normaliser, rows, components, scores


@aggregate_densities.register_fake
def _(
    sample: Tensor, parameters: Tensor, log_p: Any, masks: Sequence[int], weights: Any, with_scores: bool = True,
    shared: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _find_size(sample, parameters).allocate_outputs(sample, len(masks), shared)


@Operator
def aggregate_densities_backward(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, scores: Tensor, count: int,
    masks: Sequence[int], weights: Sequence[float], shared: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return gradients of samples [M, i, D] and of `count` posteriors [M, j, 2 D], from the forward op's outputs."""
    size, weighting = ProblemSize(rows.shape[0], grad.shape[2], count, rows.shape[1]), Weighting(*weights)
    of_sample, of_parameters = _allocate_gradients(grad, normaliser, rows, components, scores, count)
    inputs = grad, normaliser, rows, components, scores
    if shared:
        partial = _differentiate_shared(size, weighting, inputs, of_sample)
    else:
        partial = _differentiate_groups(size, weighting, masks, inputs, of_sample)
    launch(
        kernels.collect, (_ceil_div(count, 32), 2 * size.leaves, size.members),
        partial, of_parameters, count, size.components_padded, len(partial),
        WIDTH=2 * size.leaves, TILE=16, BLOCK=32, **_ONE_WARP, writes=(of_parameters,),
    )  # fmt: skip
    return of_sample, of_parameters


@aggregate_densities_backward.register_fake
def _allocate_gradients(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, scores: Tensor, count: int, *settings: Any
) -> tuple[Tensor, Tensor]:
    members, leaves, _ = rows.shape
    return grad.new_empty(members, grad.shape[2], leaves), grad.new_empty(members, count, 2 * leaves)


def _save_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, parameters, _, ctx.masks, ctx.weights, _, ctx.shared = inputs
    ctx.count = parameters.shape[1]
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Return gradients of the samples and the posteriors; log_p needs none."""
    settings = ctx.count, ctx.masks, ctx.weights, ctx.shared
    return *aggregate_densities_backward(grad, *ctx.saved_tensors, *settings), None, None, None, None, None


aggregate_densities.register_autograd(_differentiate, setup_context=_save_context)


def prefers_shared() -> bool:
    """Return whether the shared form pays: it takes seconds more to compile, as other parts of a compiled step do."""
    return torch.compiler.is_compiling()


def log_densities(
    sample: Tensor,
    mean_and_log_variance: Tensor,
    groups: Sequence[Sequence[int]],
    weights: Sequence[float],
    log_p: Tensor | None = None,
) -> Tensor:
    """Return log densities of samples [..., i, D] under mixtures of posteriors [..., j, 2 D], by group and by leaf.

    The result is [..., i, groups + D]. `weights` are the log weights of j = i, of j = i + 1 (mod B) and of all others;
    `log_p` [j], if given, is added to them. The first group holds all leaves.
    """
    leaves = sample.shape[-1]
    if sorted(groups[0]) != list(range(leaves)):
        raise UsageError(f"The first group must hold all {leaves} leaves, not {list(groups[0])}.")
    lead, samples, parameters = flatten_members(sample, mean_and_log_variance)
    masks = [make_mask(group) for group in groups]
    log_p = None if log_p is None else log_p.contiguous()
    shared = prefers_shared() and _find_size(samples, parameters).can_share(masks)
    settings = masks, list(weights), torch.is_grad_enabled(), shared
    densities, *_ = aggregate_densities(samples, parameters, log_p, *settings)
    return densities.transpose(-1, -2).reshape(*lead, sample.shape[-2], len(groups) + leaves)
