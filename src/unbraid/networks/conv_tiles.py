"""Tiles of the convolution kernels, fixed by shape, so that no process has to search.

They are the best of a search on an NVIDIA H200 by the sum of the times of one
model and of 64 members. They suit other cards of the same generation or newer, too. A tile changes the speed, never the
order of a sum.
"""

from typing import Any, NamedTuple


class ConvTile(NamedTuple):
    """Sizes of one program's tile, and its launch settings."""

    block_m: int
    block_n: int
    block_k: int
    warps: int = 4
    stages: int = 3

    @property
    def launch(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages}


def product_tile(side: int, run: int, N: int, transposed: bool, half: bool) -> ConvTile:
    """Return the tile of a product for images of a side, `run` contiguous numbers per kernel row, N output channels."""
    block_n = power_of_two(N, 64)
    if run < 16:
        return ConvTile(128 if half else 64, block_n, 16)
    block_k = next((size for size in (64, 32) if run % size == 0), 16)
    if transposed and half and block_n == 32 and block_k == 64 == run:
        return ConvTile(256, 32, 128, warps=8)  # two runs at a time
    if not half or side <= 8:
        return ConvTile(64, block_n, block_k)
    return ConvTile(128, block_n, block_k, warps=8 if block_n == 32 and not transposed else 4)


def gradient_tile(entries: int, N: int, half: bool) -> ConvTile:
    """Return the tile of a weight gradient with `entries` kernel entries per output channel; `block_m` counts rows."""
    block_n = power_of_two(N, 64)
    if entries <= 64:
        return ConvTile(64, block_n, power_of_two(entries, 64), stages=2)
    if not half:
        return ConvTile(32, block_n, 128, stages=1)  # products of two halves need registers; copies ahead take more
    return ConvTile(128, block_n, 128) if block_n <= 32 else ConvTile(64, block_n, 64)


def power_of_two(count: int, limit: int) -> int:
    """Return the smallest power of two from `count`, at least 16 (for a matrix unit) and at most `limit`."""
    return max(16, min(limit, 1 << (count - 1).bit_length()))
