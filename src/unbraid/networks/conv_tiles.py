"""Tiles of the convolution kernels, fixed by shape, so that no process has to search.

They are the best of searches on an NVIDIA H200: of products by the sum of the times of one model and of 64 members, of
weight gradients and of `spread` by the time of 64 members. They suit other cards of the same generation or newer, too.
A tile of a product changes the speed, never the order of a sum.
"""

from typing import Any, NamedTuple


class ConvTile(NamedTuple):
    """Sizes of one program's tile, and its launch settings."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3
    ahead: bool = False
    """True if a step reads the next step's numbers into registers; `stages` copy them to shared memory instead."""
    splits_tf32: bool = False
    """True if a product in TF32 multiplies each number as two bfloat16."""
    programs: int = 528
    """Programs of a weight gradient; 528 are four for each multiprocessor of an H200."""

    @property
    def launch(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages}


def product_tile(side: int, run: int, numbers: int, transposed: bool, half: bool) -> ConvTile:
    """Return the tile of a product for images of a side, `run` contiguous numbers per kernel row, and its outputs.

    `numbers` are those of one position: the output channels, for `spread` those of all pixels of a cell.
    """
    block_n = power_of_two(numbers, 128 if transposed else 64)
    if run < 16:
        return ConvTile(128 if half else 64, block_n, 16)
    block_k = next((size for size in (64, 32) if run % size == 0), 16)
    if transposed:
        return ConvTile(64, block_n, min(block_k, 64 if half and run > 64 else 32))
    if not half:
        return ConvTile(256 if block_n <= 32 else 128, block_n, min(block_k, 32), warps=8)
    if side <= 8:
        return ConvTile(64, block_n, block_k)
    return ConvTile(128, block_n, block_k, warps=8 if block_n == 32 else 4)


def gradient_tile(entries: int, N: int, sums_columns: bool, half: bool) -> ConvTile:
    """Return the tile of a weight gradient with `entries` kernel entries per output channel; `block_m` counts rows.

    `sums_columns`: the kernel also sums each column.
    """
    block_n = power_of_two(N, 64)
    if entries <= 64:
        return ConvTile(64, block_n, power_of_two(entries, 64), stages=1, ahead=True, programs=2112)
    if not half:
        return ConvTile(32, block_n, 128, stages=1, ahead=True, splits_tf32=True)
    if block_n > 32:
        return ConvTile(64, block_n, 64)
    return ConvTile(32, block_n, 256) if sums_columns else ConvTile(128, block_n, 128)


def power_of_two(count: int, limit: int) -> int:
    """Return the smallest power of two from `count`, at least 16 (for a matrix unit) and at most `limit`."""
    return max(16, min(limit, 1 << (count - 1).bit_length()))
