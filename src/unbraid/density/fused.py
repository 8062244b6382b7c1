"""Log densities of an aggregate of Normal posteriors by Triton kernels, in memory linear in the batch.

The kernels are two operators that `torch.compile` takes as they are and a CUDA graph captures: densities, and their
gradients, which recompute what the first has not kept. The sums in them are taken in the same order in every run.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from unbraid.density import kernels
from unbraid.errors import UsageError

PAD = 128
"""Packed rows and components are padded to a multiple of this, the largest block, so that no load needs a mask."""

FORWARD_STREAM, BACKWARD_STREAM = 32, 16
"""Rows or components per step of a loop, at most 32, so that all threads read the same ones. They are not tuned: with
the chunks they decide the order of sums, hence every last bit."""

PROGRAMS = 1024
"""Blocks of work that fill a GPU; where there are fewer, the streamed axis is split."""


class Tile(NamedTuple):
    """Rows (or components) that one program holds, one to a thread: the tuned part, which no result depends on."""

    block: int

    @property
    def warps(self) -> int:
        """Warps that hold the block."""
        return self.block // 32


FORWARD_TILES = (Tile(64), Tile(128))
BACKWARD_TILES = (Tile(32), Tile(64), Tile(128))
"""Candidates; the first serves while there is nothing to measure."""

_fastest: dict[tuple[Any, ...], Tile] = {}


def _launch(
    kernel: Any,
    tiles: Sequence[Tile],
    grid: Callable[[int], tuple[int, ...]],
    arguments: Sequence[Any],
    **constants: Any,
) -> None:
    """Run a kernel with the tile that was fastest at the first call for such shapes.

    Nothing is measured while a CUDA graph is captured: a capture after a first plain call finds the choice made.
    """

    def run(tile: Tile) -> None:
        kernel[grid(tile.block)](*arguments, **constants, BLOCK=tile.block, num_warps=tile.warps)

    magnitudes = (size.bit_length() // 2 for size in grid(PAD))
    key = (kernel, arguments[0].device, *magnitudes, *constants.values())
    tile = _fastest.get(key)
    if tile is None and isinstance(kernel, triton.JITFunction) and not torch.cuda.is_current_stream_capturing():
        tile = _fastest[key] = min(tiles, key=lambda tile: _milliseconds(lambda: run(tile)))
    run(tile or tiles[0])


def _milliseconds(call: Callable[[], None], repeats: int = 3) -> float:
    """Time of a call on the current stream, the first one (which compiles) left out."""
    call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


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
        """Shapes of the densities, of their binary logarithms, and of the packed rows and components."""
        return (
            (self.members, groups + self.leaves, self.rows),
            (self.members, groups + self.leaves, self.rows_padded),
            (self.members, self.leaves, self.rows_padded),
            (self.members, 3 * self.leaves + groups, self.components_padded),
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


def _table(masks: Sequence[int]) -> dict[str, Any]:
    """What the kernels know of groups: first leaf, one past the last, members, and a slot that gradients go to.

    Groups that share no leaf share a slot.
    """
    taken: list[int] = []
    slots = []
    for mask in (mask % 2**64 for mask in masks):
        slot = next((n for n, leaves in enumerate(taken) if not leaves & mask), len(taken))
        taken = [*taken[:slot], mask | (taken[slot] if slot < len(taken) else 0), *taken[slot + 1 :]]
        slots.append(slot)
    first = tuple((mask & -mask).bit_length() - 1 for mask in masks)
    last = tuple((mask % 2**64).bit_length() for mask in masks)
    return {"FIRST": first, "LAST": last, "MASK": tuple(masks), "SLOT": tuple(slots), "SLOTS": len(taken)}


def _split(blocks: int, length: int, shortest: int) -> tuple[int, int]:
    """Number and length (a multiple of 32) of a streamed axis' chunks, to fill a GPU with so many blocks of work."""
    chunk = max(shortest, _pieces(length, _pieces(PROGRAMS, blocks) * 32) * 32)
    return _pieces(length, chunk), chunk


@torch.library.custom_op("unbraid::aggregate_densities", mutates_args=())
def aggregate_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log densities [M, groups + D, i] of samples [M, i, D] under posteriors [M, j, 2 D]; the rest is for gradients."""
    job, weighting = Job(sample.shape[0], sample.shape[1], parameters.shape[1], sample.shape[2]), Weights(*weights)
    out, normaliser, rows, components = (sample.new_empty(shape) for shape in job.outputs(len(masks)))
    blocks = _pieces(job.rows, 64) * job.members * (len(masks) + job.leaves // 8)  # a leaf is a fraction of a group
    splits, chunk = _split(blocks, job.components, shortest=128)
    partial = sample.new_empty((splits, 2, *normaliser.shape) if splits > 1 else 0)
    table = _table(masks)
    constants: dict[str, Any] = {"MASK": table["MASK"], "GROUPS": len(masks), "D": job.leaves}
    with torch.cuda.device_of(sample):
        kernels.pack[_pieces(max(job.rows_padded, job.components_padded), 64), job.members](
            sample, parameters, sample if log_p is None else log_p, rows, components, normaliser, *job.sizes,
            *sample.stride(), *parameters.stride(), weighting.other, **constants,
            WIDTH=triton.next_power_of_2(job.leaves), HAS_LOG_P=log_p is not None, BLOCK=64,
        )  # fmt: skip
        _launch(
            kernels.forward,
            FORWARD_TILES,
            lambda block: (_pieces(job.rows, block) * splits, out.shape[1], job.members),
            (rows, components, out, normaliser, partial, *job.sizes, chunk, *weighting.excess),
            **constants, FIRST=table["FIRST"], LAST=table["LAST"], UNEQUAL=weighting.unequal, SPLIT=splits > 1,
            STREAM=FORWARD_STREAM,
        )  # fmt: skip
        if splits > 1:
            grid = job.members * out.shape[1], _pieces(job.rows_padded, 256)
            kernels.combine[grid](partial, out, normaliser, job.rows, job.rows_padded, splits, BLOCK=256)
    return out, normaliser, rows, components


@aggregate_densities.register_fake
def _fake_densities(
    sample: Tensor, parameters: Tensor, log_p: Tensor | None, masks: Sequence[int], weights: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    job = Job(sample.shape[0], sample.shape[1], parameters.shape[1], sample.shape[2])
    out, normaliser, rows, components = (sample.new_empty(shape) for shape in job.outputs(len(masks)))
    return out, normaliser, rows, components


@torch.library.custom_op("unbraid::aggregate_densities_backward", mutates_args=())
def aggregate_densities_backward(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, count: int, masks: Sequence[int],
    weights: Sequence[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of samples [M, i, D] and of `count` posteriors [M, j, 2 D], from what the forward op returned."""
    job, weighting, table = Job(rows.shape[0], grad.shape[2], count, rows.shape[1]), Weights(*weights), _table(masks)
    every_leaf_written = sum((mask % 2**64).bit_count() for mask in masks) == job.leaves * table["SLOTS"]
    padded = torch.empty_like(normaliser)

    def gradient(of_rows: bool) -> Tensor:
        fixed, streamed = (job.rows, job.components) if of_rows else (job.components, job.rows)
        splits, chunk = _split(_pieces(fixed, 64) * job.members * len(masks), streamed, shortest=32)
        packed = (job.leaves, job.rows_padded) if of_rows else (2 * job.leaves, job.components_padded)
        shape = (splits * table["SLOTS"], job.members, *packed)
        partial = grad.new_empty(shape) if every_leaf_written else grad.new_zeros(shape)
        _launch(
            kernels.backward,
            BACKWARD_TILES,
            lambda block: (_pieces(fixed, block) * splits, len(masks), job.members),
            (padded, normaliser, rows, components, partial, *job.sizes, chunk, *weighting.excess),
            **table, GROUPS=len(masks), D=job.leaves, WIDTH=triton.next_power_of_2(job.leaves),
            UNEQUAL=weighting.unequal, OF_ROWS=of_rows, STREAM=BACKWARD_STREAM,
        )  # fmt: skip
        summed = partial.sum(0) if len(partial) > 1 else partial[0]
        return summed.transpose(1, 2)[:, :fixed]

    with torch.cuda.device_of(grad):
        grid = _pieces(job.rows_padded, 256), grad.shape[1], job.members
        kernels.pad[grid](grad, padded, job.rows, job.rows_padded, *grad.stride(), BLOCK=256)
        return gradient(of_rows=True), gradient(of_rows=False)


@aggregate_densities_backward.register_fake
def _fake_gradients(
    grad: Tensor, normaliser: Tensor, rows: Tensor, components: Tensor, count: int, masks: Sequence[int],
    weights: Sequence[float],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    of_components = grad.new_empty(rows.shape[0], 2 * rows.shape[1], components.shape[2])
    return torch.empty_like(rows).transpose(1, 2)[:, : grad.shape[2]], of_components.transpose(1, 2)[:, :count]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, parameters, _, ctx.masks, ctx.weights = inputs
    ctx.count = parameters.shape[1]
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the samples and the posteriors; the packed copies lead nowhere, and log_p needs none."""
    of_sample, of_parameters = aggregate_densities_backward(grad, *ctx.saved_tensors, ctx.count, ctx.masks, ctx.weights)
    return of_sample, of_parameters, None, None, None


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
    bits = [sum(1 << leaf for leaf in group) for group in groups]
    masks = [mask - 2**64 if mask >= 2**63 else mask for mask in bits]
    densities, *_ = aggregate_densities(*flat, None if log_p is None else log_p.contiguous(), masks, list(weights))
    return densities.transpose(-1, -2).reshape(*lead, sample.shape[-2], len(groups) + leaves)
