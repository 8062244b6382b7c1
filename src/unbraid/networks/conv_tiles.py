"""Tiles of the convolution kernels, and rules that choose a kernel, fixed by shape, so that no process has to search.

They are the best of searches on an NVIDIA H200: of products by the sum of the times of one model and of 64 members, of
weight gradients and of `spread` by the time of 64 members. They suit other cards of the same generation or newer, too.
A tile of a product changes the speed, never the order of a sum. A rule that chooses another kernel changes both.
"""

from collections.abc import Sequence
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


HALVING = (4, 2, 1)
"""Kernel, stride and padding of the layers that halve or double an image; some kernels compute only these."""

READS_WINDOWS = True
"""False makes `conv_kernels.py` compute the gradients of layers that read pictures, too."""

WALKS_LINES = True
"""False makes `conv_kernels.py` compute the last layer of a decoder by product and fold, too."""

HALVES_LINES = True
"""False makes `conv_kernels.py` compute all layers that halve an image of many channels."""

DOUBLES_LINES = True
"""False makes `conv_kernels.py` compute all layers that double an image to many channels."""

STORES_RELU_BITS = True
"""False makes the gradient of an input read all activations to know which are above 0, not one bit of each."""

ADDS_PARTS = True
"""False makes torch add the partial sums of weight gradients."""

MAX_PARTS_TO_ADD = 32
"""Most partial sums of a number that `partial_sums.py` adds: a thread reads all of them at once."""

TRANSPOSES_WEIGHTS = True
"""False makes torch copy weights of `spread` in float32 to the layout that tensor cores read."""

MIN_ROWS_TO_WALK = 128 * 64
"""Fewest images times columns of a layer that `halving_kernels.py` or `doubling_kernel.py` computes: 128 programs of 64
rows. Few programs that walk down whole images would leave a card idle."""

MIN_SIDE_TO_HALVE = 32
"""Least side of an image that `halving_kernels.py` halves; the cache serves smaller ones well."""

MIN_SHARED_MEMORY = 200 * 1024
"""Bytes of shared memory that a program of the kernels which walk may need. Hopper and its successors have them."""

GROUP, SPAN, LEAD = 4, 16, 4
"""Positions that `picture_kernels.py` reads together, pixels of a line that it reads for them, and the place of the
group's own first pixel in these. Lines start at multiples of four pixels, so they are read as vectors of four."""


class WalkTile(NamedTuple):
    """Rows of a tile (groups of positions, or positions), the programs that share all tiles, and launch settings."""

    rows: int = 64
    programs: int = 256
    warps: int = 4
    stages: int = 1
    registers: int | None = None
    """Most registers of a thread, so that more programs fit on a multiprocessor; None leaves the number to Triton."""

    @property
    def launch(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}

    def share(self, rows: int, members: int) -> tuple[int, int]:
        """Return how many programs share the rows of each member, and the tiles of one program."""
        tiles = max(1, -(-rows // self.rows))  # of an empty batch, too
        each = -(-tiles // max(1, -(-self.programs // members)))
        return -(-tiles // each), each


class Layer(NamedTuple):
    """A layer, as far as the rules below ask."""

    kernel: int
    stride: int
    padding: int
    size: int
    """Bytes of a number that tensor cores multiply: 2, 4 for TF32, or 0 for float32 in full precision."""

    @property
    def halves(self) -> bool:
        """True for the kernel that halves or doubles an image, on tensor cores."""
        return self[:3] == HALVING and self.size > 0


def reads_windows(image: Sequence[int], N: int, layer: Layer) -> bool:
    """Return whether `picture_kernels.py` differentiates N kernels for images [row, column, channel]."""
    H, W, C = image
    fits = C == 1 and H % 2 == 0 and W % (2 * GROUP) == 0 and N in (4, 8, 16, 32)
    return READS_WINDOWS and layer.halves and fits


def halves_lines(images: int, image: Sequence[int], N: int, layer: Layer) -> bool:
    """Return whether `halving_kernels.py` sums gradients of N kernels over this many images of all members.

    In 16 bits it correlates them, too; in TF32, the weight would take the shared memory that images need.
    """
    H, W, C = image
    fits = H % 2 == 0 and W % 2 == 0 and C in (16, 32) and N in (16, 32)
    enough = images * W // 2 >= MIN_ROWS_TO_WALK and min(H, W) >= MIN_SIDE_TO_HALVE
    return HALVES_LINES and layer.halves and fits and enough


def doubles_lines(images: int, image: Sequence[int], out: Sequence[int], layer: Layer) -> bool:
    """Return whether `doubling_kernel.py` spreads this many images of all members to images of the size `out`."""
    H, W, C = image
    fits = C in (16, 32) and layer.size == 2 and tuple(out[:2]) == (2 * H, 2 * W) and out[2] in (16, 32)
    return DOUBLES_LINES and layer.halves and fits and images * W >= MIN_ROWS_TO_WALK


def walks_lines(image: Sequence[int], out: Sequence[int], layer: Layer, stored: int) -> bool:
    """Return whether `last_layer_kernel.py` spreads images [row, column, channel] to images of the size `out`.

    `stored` are the bytes of a number of the images. Colours would need more shared memory, and were not timed.
    """
    H, W, C = image
    fits = W % GROUP == 0 and C in (8, 16, 32, 64) and C * max(layer.size, stored) <= 128
    return WALKS_LINES and layer.halves and fits and tuple(out) == (2 * H, 2 * W, 1)


def stores_relu_bits(N: int) -> bool:
    """Return whether a layer with N channels and a ReLU stores which numbers are above 0, in words of 32 bits."""
    return STORES_RELU_BITS and N % 32 == 0


def adds_parts(parts: int) -> bool:
    """Return whether `partial_sums.py` adds this many partial sums of each number."""
    return ADDS_PARTS and parts <= MAX_PARTS_TO_ADD


def adding_tile() -> tuple[int, int]:
    """Return the numbers that a program of `partial_sums.py` makes, and its warps."""
    return 2048, 8


def transposes_weights() -> bool:
    """Return whether `weight_layout.py` copies weights."""
    return TRANSPOSES_WEIGHTS


def transposing_tile() -> tuple[int, int]:
    """Return the side of a tile of `weight_layout.py`, and the warps of its program."""
    return 64, 4


def window_tile(product: bool, size: int) -> WalkTile:
    """Return the tile for the gradient of a weight, or for that and a product in one pass, by the size of a number.

    Three programs fit on a multiprocessor, two of those that do both; with 64 members all of them run at once.
    """
    if product:
        return WalkTile(programs=256, stages=2 if size == 2 else 1)
    return WalkTile(64 if size == 2 else 32, programs=384)


def last_layer_tile() -> WalkTile:
    """Return the tile of the last layer."""
    return WalkTile(programs=1056, stages=3)


def halving_tile(masked: bool) -> WalkTile:
    """Return the tile of a layer that halves an image; activations as a mask need registers that copies lack then."""
    return WalkTile(programs=256, stages=2) if masked else WalkTile(programs=128, stages=4)


def halving_gradient_tile(size: int, sums_columns: bool) -> WalkTile:
    """Return the tile for the gradient of such a layer's weight, whose sums a program keeps in registers.

    `size` is that of a number; `sums_columns`: the kernel also sums each column.
    """
    if size == 4:
        return WalkTile(32, warps=8, registers=128) if sums_columns else WalkTile(32)
    return WalkTile(32, stages=4) if sums_columns else WalkTile(64, stages=3)


def doubling_tile() -> WalkTile:
    """Return the tile of a layer that doubles an image. Two programs fit on a multiprocessor."""
    return WalkTile(programs=2112, warps=8, stages=3, registers=128)
