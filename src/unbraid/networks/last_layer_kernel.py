"""Triton kernel for the last layer of a decoder: `spread` to pictures, k = 4, s = 2, p = 1.

The layer writes few numbers per input pixel, so `conv_kernels.py` stores the products of all kernel entries and adds
them in a second pass, which moves more bytes than input and output together. Here a program walks down the lines of
some images. A line i of the input adds to the output's lines 2 i - 1 and 2 i (ky = 0, 1), which it completes, and to
the two after these (ky = 2, 3), whose sums wait for the next line. So each line is read once.

Across, as in `picture_kernels.py`, a row of the product is a group of `GROUP` pixels of a line with all their channels,
contiguous in memory, and the matrix has a column for each number (ry, px, n) of the group's pixels of the output:

    matrix[(g, c), (ry, px, n)] = weight[c, n, ky, px + 1 - 2 g], or 0 outside of the kernel

The pixels left and right of the group, g = -1 and g = GROUP, add to it, too; they are read for a second product.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_kernels import TRITON_TYPES
from unbraid.networks.conv_tiles import GROUP, last_layer_tile, power_of_two
from unbraid.networks.epilogue import Epilogue


@triton.jit
@no_type_check
def _read_matrix(weight, g, c, of_n, of_tap, of_c, N: tl.constexpr, LINE: tl.constexpr, NUMBERS: tl.constexpr):
    """Read matrix[(g, c), ((ry, px, n), later)]: for ky = ry, and for ky = ry + 2 of the lines that come later."""
    column = tl.arange(0, 2 * NUMBERS)
    number = column // 2
    ky = number // LINE + column % 2 * 2
    kx = (number % LINE // N + 1)[None, :] - 2 * g[:, None]
    entry = (c * of_c)[:, None] + (number % N * of_n)[None, :] + ((ky * 4)[None, :] + kx) * of_tap
    return tl.load(weight + entry, mask=(kx >= 0) & (kx < 4) & (number < 2 * LINE)[None, :], other=0.0)


@triton.jit(do_not_specialize=["rows", "strip"])
@no_type_check
def _last_layer(
    x, weight, bias, mask, out, rows, strip, of_member, of_n, of_tap, of_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr, GROUPED: tl.constexpr, NUMBERS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute `strip` pairs of lines of the output for BLOCK_M of the rows (batch, w), the groups of a line."""
    GROUPS: tl.constexpr = W // GROUPED
    LINE: tl.constexpr = 2 * GROUPED * N  # numbers of a group in a line of the output
    strips = (H + strip) // strip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // strips * BLOCK_M + tl.arange(0, BLOCK_M)
    w = row % GROUPS
    image = member * (rows // GROUPS) + row // GROUPS
    known = (row < rows)[:, None]
    k = tl.arange(0, GROUPED * C)
    beside = tl.arange(0, 2 * C)
    right = beside // C
    pixel = (w * GROUPED - 1)[:, None] + (right * (GROUPED + 1))[None, :]
    has_pixel = known & (pixel >= 0) & (pixel < W)
    inner = (image * (H * W * C) + w * (GROUPED * C))[:, None] + k[None, :]
    outer = (image * (H * W * C) + w * (GROUPED * C))[:, None] + (beside - C + right * (GROUPED * C))[None, :]

    weight += member * of_member
    number = tl.arange(0, NUMBERS)
    of_own = _read_matrix(weight, k // C, k % C, of_n, of_tap, of_c, N, LINE, NUMBERS)
    side = right * (GROUPED + 1) - 1
    of_neighbours = _read_matrix(weight, side, beside % C, of_n, of_tap, of_c, N, LINE, NUMBERS)
    if BIASED:
        added = tl.load(bias + member * N + number % N).to(tl.float32)
    of_number = (number // LINE - 1) * (2 * W * N) + number % LINE
    place = (image * (4 * H * W * N) + w * LINE)[:, None] + of_number[None, :]
    first = tl.program_id(0) % strips * strip
    waiting = tl.full((BLOCK_M, NUMBERS), 0.0, tl.float32)
    for line in range(first - 1, tl.minimum(first + strip, H + 1)):
        there = (line >= 0) & (line < H)
        own = tl.load(x + inner + line * (W * C), mask=known & there, other=0.0).to(COMPUTE)
        neighbours = tl.load(x + outer + line * (W * C), mask=has_pixel & there, other=0.0).to(COMPUTE)
        both = tl.dot(neighbours, of_neighbours, tl.dot(own, of_own))
        now, later = tl.split(tl.reshape(both, (BLOCK_M, NUMBERS, 2)))
        made, waiting = waiting + now, later
        if BIASED:
            made += added[None, :]
        if RELU:
            made = tl.maximum(made, 0.0)
        pair = 2 * line - 1 + number // LINE
        wanted = known & ((line >= first) & (pair >= 0) & (pair < 2 * H) & (number < 2 * LINE))[None, :]
        here = place + 2 * line * (2 * W * N)
        if MASKED:
            made = tl.where(tl.load(mask + here, mask=wanted, other=0.0) > 0, made, 0.0)
        tl.store(out + here, made.to(out.dtype.element_ty), mask=wanted)


def launch_last_layer(x: Tensor, weight: Tensor, out: Tensor, compute: torch.dtype, epilogue: Epilogue) -> None:
    """Run `_last_layer` on x and out [member, batch, row, column, channel] and a weight [member, c, n, ky, kx]."""
    members, batch, H, W, C = x.shape
    N = out.shape[-1]
    tile = last_layer_tile()
    rows = batch * W // GROUP
    blocks = max(1, -(-rows // tile.rows))  # of an empty batch, too
    strip = -(-(H + 1) // max(1, tile.programs // (blocks * members)))
    biased, relu, masked = epilogue.flags
    weight = weight.to(compute)
    launch(
        _last_layer, (blocks * ((H + strip) // strip), members),
        x, weight, *epilogue.pointers(out), out, rows, strip,
        weight.stride(0), weight.stride(2), weight.stride(4), weight.stride(1),
        H=H, W=W, C=C, N=N, BIASED=biased, RELU=relu, MASKED=masked, COMPUTE=TRITON_TYPES[compute],
        GROUPED=GROUP, NUMBERS=power_of_two(4 * GROUP * N, 128), BLOCK_M=tile.rows, **tile.launch,
        writes=(out,),
    )  # fmt: skip
