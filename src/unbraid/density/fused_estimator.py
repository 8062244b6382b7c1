"""Log densities of an aggregate of Normal posteriors by Triton kernels, in memory linear in the batch.

The kernels are two operators that `torch.compile` takes as they are and a CUDA graph captures: densities, and their
gradients, which recompute what the first has not kept. The sums in them are taken in the same order in every run.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from unbraid.density import triton_kernels as kernels
from unbraid.errors import UsageError
from unbraid.operators import Operator

PAD = 128
"""Packed rows and components are padded to a multiple of this, the largest block, so that no load needs a mask."""


class Tile(NamedTuple):
    """What a warp has in hand: rows (or components) streamed in one step, fewer than 32 so that all threads read the
    same ones, and a block of components (or rows) that its threads hold. Results do not depend on the block."""

    stream: int
    block: int


class Tiles(NamedTuple):
    """Tiles of one kernel: of groups, of leaves alone, and the most registers that a thread takes."""

    group: Tile
    leaf: Tile
    registers: int


FORWARD = Tiles(Tile(2, 64), Tile(8, 64), registers=128)
BACKWARD = Tiles(Tile(2, 64), Tile(8, 64), registers=168)

_ONE_WARP: dict[str, Any] = {"num_warps": 1}

UNROLLED = 16
"""The most leaves that a program holds in registers at once; a wider group takes several programs."""

PROGRAMS = 2112
"""Programs, of groups and as many of leaves, that fill a GPU; where there are fewer, the streamed axis is split."""


def _pieces(count: int, size: int) -> int:
    """Pieces of a size that hold so many."""
    return (count + size - 1) // size


class Job(NamedTuple):
    """The sizes of one call: members, rows i, components j, leaves D, and how far rows and components are padded."""

    members: int
    rows: int
    components: int
    leaves: int

    @property
    def rows_padded(self) -> int:
        """Rows as packed."""
        return _pieces(self.rows, PAD) * PAD

    @property
    def components_padded(self) -> int:
        """Components as packed."""
        return _pieces(self.components, PAD) * PAD

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """What every kernel is told."""
        return self.rows, self.components, self.rows_padded, self.components_padded

    def outputs(self, groups: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the densities, of their binary logarithms, of the packed rows and components, and of the scores."""
        return (
            (self.members, groups + self.leaves, self.rows),
            (self.members, groups + self.leaves, self.rows_padded),
            (self.members, self.leaves, self.rows_padded),
            (self.members, 3 * self.leaves + groups, self.components_padded),
            (self.members, (groups + 1) * self.leaves, self.rows),
        )


class Weights(NamedTuple):
    """Log weights of the components j = i, j = i + 1 and all others, without those that come per component."""

    own: float
    after: float
    other: float

    @property
    def unequal(self) -> bool:
        """Whether a row has to know which component is its own."""
        return not self.own == self.after == self.other

    @property
    def excess(self) -> tuple[float, float]:
        """What the first two have over the third, to base 2."""
        return (self.own - self.other) * math.log2(math.e), (self.after - self.other) * math.log2(math.e)


class Plan(NamedTuple):
    """How the streamed axis is cut, for groups and for leaves alone: length and number of chunks."""

    group_chunk: int
    group_splits: int
    leaf_chunk: int
    leaf_splits: int

    @classmethod
    def of(cls, job: Job, groups: int, held: int, streamed: int) -> "Plan":
        """Chunks (of a multiple of 16) short enough to fill a GPU, whatever the tiles are."""

        def cut(blocks: int) -> tuple[int, int]:
            chunk = _pieces(streamed, _pieces(PROGRAMS, blocks * job.members) * 16) * 16
            return chunk, _pieces(streamed, chunk)

        return cls(*cut(_pieces(held, 64) * groups), *cut(_pieces(held, 128) * job.leaves))


def _mask(leaves: Sequence[int]) -> int:
    """A group as the bits of a signed number of 64."""
    bits = sum(1 << leaf for leaf in leaves)
    return bits - 2**64 if bits >= 2**63 else bits


def _members_of(mask: int) -> tuple[int, ...]:
    """Leaves of a group."""
    return tuple(leaf for leaf in range(64) if (mask >> leaf) & 1)


def _whole(masks: Sequence[int], job: Job) -> bool:
    """Whether each group writes to all leaves."""
    return all(len(_members_of(mask)) == job.leaves for mask in masks)


def _launch(
    kernel: Any, tiles: Tiles, job: Job, masks: Sequence[int], plan: Plan, held: int, weights: Weights,
    tensors: Sequence[Tensor], **constants: Any,
) -> None:  # fmt: skip
    """Run a kernel for each group, the first time for the leaves alone, too."""
    alone = tiles.leaf
    for group, mask in enumerate(masks):
        leaves = _members_of(mask)
        wide = len(leaves) > 10  # a smaller block and all registers there are keep sums out of slower memory
        tile = tiles.group._replace(block=32) if wide else tiles.group
        limits = {} if torch.version.hip else {"maxnreg": 255 if wide else tiles.registers}
        for first in range(0, len(leaves), UNROLLED):
            mine = leaves[first : first + UNROLLED]
            cuts = plan if group == first == 0 else plan._replace(leaf_splits=0)
            programs = _pieces(held, tile.block) * cuts.group_splits
            programs += _pieces(held, alone.block) * cuts.leaf_splits * job.leaves
            kernel[programs, job.members](
                *tensors, *job.sizes, *cuts, *weights.excess, group,
                LEAVES=mine, COUNT=len(mine), OTHERS=_mask([leaf for leaf in leaves if leaf not in mine]),
                GROUPS=len(masks), D=job.leaves, UNEQUAL=weights.unequal, GROUP_STREAM=tile.stream,
                GROUP_BLOCK=tile.block, LEAF_STREAM=alone.stream, LEAF_BLOCK=alone.block, **_ONE_WARP,
                **limits, **constants,
            )  # fmt: skip


@Operator
def aggregate_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float],
    with_scores: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Log densities [M, groups + D, i] of samples [M, i, D] under posteriors [M, j, 2 D]; the rest is for gradients."""
    job, weighting = Job(sample.shape[0], sample.shape[1], parameters.shape[1], sample.shape[2]), Weights(*weights)
    out, normaliser, rows, components, scores = (sample.new_empty(shape) for shape in job.outputs(len(masks)))
    plan = Plan.of(job, len(masks), held=job.rows, streamed=job.components)
    sums = plan.group_splits, job.members, len(masks), 2 + job.leaves, job.rows_padded
    grouped = sample.new_empty(sums) if _whole(masks, job) else sample.new_zeros(sums)
    alone = sample.new_empty(plan.leaf_splits, job.members, job.leaves, 3, job.rows_padded)
    constants: dict[str, Any] = {"GROUPS": len(masks), "D": job.leaves}
    packing: dict[str, Any] = {"MASK": tuple(masks), "WIDTH": triton.next_power_of_2(job.leaves), "BLOCK": 32}
    packing["HAS_LOG_P"] = log_p is not None
    with torch.cuda.device_of(sample):
        kernels.pack[_pieces(max(job.rows_padded, job.components_padded), 32), job.members](
            sample, parameters, sample if log_p is None else log_p, rows, components, normaliser, *job.sizes,
            *sample.stride(), *parameters.stride(), weighting.other, **constants, **packing,
        )  # fmt: skip
        _launch(
            kernels.forward, FORWARD, job, masks, plan, job.rows, weighting,
            (rows, components, grouped, alone), SCORES=with_scores,
        )  # fmt: skip
        kernels.combine[_pieces(job.rows, 32), scores.shape[1], job.members](
            grouped, alone, out, normaliser, scores, job.rows, job.rows_padded, plan.group_splits, plan.leaf_splits,
            **constants, SCORES=with_scores, TILE=16, BLOCK=32, **_ONE_WARP,
        )  # fmt: skip
    return out, normaliser, rows, components, scores


@aggregate_densities.register_fake
def _fake_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float],
    with_scores: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    job = Job(sample.shape[0], sample.shape[1], parameters.shape[1], sample.shape[2])
    out, normaliser, rows, components, scores = (sample.new_empty(shape) for shape in job.outputs(len(masks)))
    return out, normaliser, rows, components, scores


@Operator
def aggregate_densities_backward(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, scores: Tensor, count: int,
    masks: Sequence[int], weights: Sequence[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of samples [M, i, D] and of `count` posteriors [M, j, 2 D], from what the forward op returned."""
    job, weighting = Job(rows.shape[0], grad.shape[2], count, rows.shape[1]), Weights(*weights)
    plan = Plan.of(job, len(masks), held=job.components, streamed=job.rows)
    parts = plan.group_splits * len(masks) + plan.leaf_splits, job.members, 2 * job.leaves, job.components_padded
    partial = grad.new_empty(parts) if _whole(masks, job) else grad.new_zeros(parts)
    of_sample, of_parameters = _gradients(grad, rows, count)
    padded = torch.empty_like(normaliser)
    with torch.cuda.device_of(grad):
        kernels.backward_rows[_pieces(job.rows_padded, 128), job.leaves, job.members](
            grad, scores, padded, of_sample, job.rows, job.rows_padded, *grad.stride(),
            MASK=tuple(masks), GROUPS=len(masks), D=job.leaves, BLOCK=128,
        )  # fmt: skip
        _launch(
            kernels.backward, BACKWARD, job, masks, plan, count, weighting,
            (padded, normaliser, rows, components, partial),
        )  # fmt: skip
        kernels.collect[_pieces(count, 32), 2 * job.leaves, job.members](
            partial, of_parameters, count, job.components_padded, len(partial),
            WIDTH=2 * job.leaves, TILE=16, BLOCK=32, **_ONE_WARP,
        )  # fmt: skip
    return of_sample, of_parameters


def _gradients(grad: Tensor, rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    members, leaves, _ = rows.shape
    return grad.new_empty(members, grad.shape[2], leaves), grad.new_empty(members, count, 2 * leaves)


@aggregate_densities_backward.register_fake
def _fake_gradients(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, scores: Tensor, count: int,
    masks: Sequence[int], weights: Sequence[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _gradients(grad, rows, count)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, parameters, _, ctx.masks, ctx.weights, _ = inputs
    ctx.count = parameters.shape[1]
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the samples and the posteriors; the packed copies lead nowhere, and log_p needs none."""
    of_sample, of_parameters = aggregate_densities_backward(grad, *ctx.saved_tensors, ctx.count, ctx.masks, ctx.weights)
    return of_sample, of_parameters, None, None, None, None


aggregate_densities.register_autograd(_differentiate, setup_context=_remember)


def log_densities(
    sample: Tensor,
    mean_and_log_variance: Tensor,
    groups: Sequence[Sequence[int]],
    weights: Sequence[float],
    log_p: Tensor | None = None,
) -> Tensor:
    """Log density of samples [..., i, D] under mixtures of posteriors [..., j, 2 D]: first groups, then leaves.

    The result is [..., i, groups + D]. `weights` are the log weights of j = i, of j = i + 1 (mod B) and of all others;
    `log_p` [j], if given, is added to them. The first group holds all leaves.
    """
    leaves = sample.shape[-1]
    if sorted(groups[0]) != list(range(leaves)):
        raise UsageError(f"The first group must hold all {leaves} leaves, not {list(groups[0])}.")
    lead = torch.broadcast_shapes(sample.shape[:-2], mean_and_log_variance.shape[:-2])
    members = math.prod(lead)
    flat = (t.expand(*lead, *t.shape[-2:]).reshape(members, *t.shape[-2:]) for t in (sample, mean_and_log_variance))
    masks = [_mask(group) for group in groups]
    log_p = None if log_p is None else log_p.contiguous()
    densities, *_ = aggregate_densities(*flat, log_p, masks, list(weights), torch.is_grad_enabled())
    return densities.transpose(-1, -2).reshape(*lead, sample.shape[-2], len(groups) + leaves)
