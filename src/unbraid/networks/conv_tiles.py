"""Tiles of the convolution kernels: fixed per shape, so that no process has to try them out.

The numbers were measured on an NVIDIA H200 by `benchmarks/convolutions.py --tune`; other cards of the same generation
or newer run them well, too. A tile changes the speed only, never the order of a sum.
"""

from typing import Any, NamedTuple


class Tile(NamedTuple):
    """Sizes of one program's tile, and how it is launched."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int

    @property
    def launch(self) -> dict[str, Any]:
        """Keywords of a kernel launch."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def product_tile(C: int, N: int, run: int, transposed: bool, half: bool, members: int, rows: int) -> Tile:
    """Return the tile of a product with C channels in, N out and runs of so many contiguous numbers."""
    block_n = power_of_two(N, 64)
    line = 64 if half else 32  # a tile's row is one cache line of 128 bytes where the run allows it
    block_k = next((size for size in (line, 32) if run % size == 0), 16)
    return Tile(128, block_n, block_k, 4, 3)


def gradient_tile(C: int, N: int, entries: int, half: bool, members: int, rows: int) -> Tile:
    """Return the tile of a weight gradient with so many kernel entries per output channel; `block_m` counts rows."""
    return Tile(64, power_of_two(N, 64), power_of_two(entries, 128), 4, 3)


def power_of_two(count: int, limit: int) -> int:
    """Return the smallest power of two that holds `count`, from 16 (what a matrix unit takes) to `limit`."""
    return max(16, min(limit, 1 << (count - 1).bit_length()))
