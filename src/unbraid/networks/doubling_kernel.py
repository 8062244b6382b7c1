"""Triton kernel for layers that double an image of many channels: `spread`, k = 4, s = 2, p = 1.

A cell (u, v) has the output's pixels 2 u - 1, 2 u by 2 v - 1, 2 v, and needs the inputs u - 1, u by v - 1, v:

    window[(a, b, c)] = x[u - 1 + a, v - 1 + b, c]
    matrix[(a, b, c), (ry, rx, n)] = weight[c, n, ry + 2 - 2 a, rx + 2 - 2 b]

`conv_kernels.py` reads the matrix for every tile of cells, more bytes than all images. Here a program reads it once and
walks down the lines of some images. Along a line, places in memory only move, so that a step computes few of them, and
the windows of the next steps are copied to shared memory meanwhile.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_kernels import TRITON_TYPES, Epilogue
from unbraid.networks.conv_tiles import doubling_tile


@triton.jit(do_not_specialize=["rows", "strip"])
@no_type_check
def _double(
    x, weight, bias, mask, out, rows, strip, of_member, of_n, of_tap, of_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute `strip` lines of cells for BLOCK_M of the rows (batch, v) of a member."""
    LINE: tl.constexpr = 2 * W * N
    strips = (H + strip) // strip
    member = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // strips * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(0) % strips * strip
    image = member * (rows // (W + 1)) + row // (W + 1)
    v = row % (W + 1)
    known = (row < rows)[:, None]

    k = tl.arange(0, 4 * C)
    a, b = k // (2 * C), k // C % 2
    place = ((v - 1) * C)[:, None] + (k % (2 * C))[None, :]
    inside = known & (place >= 0) & (place < W * C)
    source = x + (image * (H * W * C))[:, None] + ((a - 1) * (W * C))[None, :] + place

    number = tl.arange(0, 4 * N)
    ry, rx = number // (2 * N), number // N % 2
    pixel = (2 * v - 1)[:, None] + rx[None, :]
    has_pixel = known & (pixel >= 0) & (pixel < 2 * W)
    target = (image * (2 * H * LINE) + (2 * v - 1) * N)[:, None] + ((ry - 1) * LINE + number % (2 * N))[None, :]

    tap = (ry * 4 + rx + 10)[None, :] - (a * 8 + b * 2)[:, None]
    entry = (k % C * of_c)[:, None] + (number % N * of_n)[None, :] + tap * of_tap
    matrix = tl.load(weight + member * of_member + entry)
    if BIASED:
        added = tl.load(bias + member * N + number % N).to(tl.float32)
    if MASKED:  # read a line ahead, since nothing else hides how long it takes
        line = 2 * first + ry
        inner = has_pixel & ((line > 0) & (line <= 2 * H))[None, :]
        ahead = tl.load(mask + target + 2 * first * LINE, mask=inner, other=0.0)
    for u in range(first, tl.minimum(first + strip, H + 1)):
        there = (u + a > 0) & (u + a <= H)
        window = tl.load(source + u * (W * C), mask=inside & there[None, :], other=0.0)
        line = 2 * u + ry
        here = target + 2 * u * LINE
        if MASKED:
            kept = ahead
            ahead = tl.load(mask + here + 2 * LINE, mask=has_pixel & (line + 2 <= 2 * H)[None, :], other=0.0)
        made = tl.dot(window.to(COMPUTE), matrix)
        if BIASED:
            made += added[None, :]
        if RELU:
            made = tl.maximum(made, 0.0)
        stored = made.to(out.dtype.element_ty)
        if MASKED:
            stored = tl.where(kept > 0, stored, 0.0)
        tl.store(out + here, stored, mask=has_pixel & ((line > 0) & (line <= 2 * H))[None, :])


def launch_doubling(x: Tensor, weight: Tensor, out: Tensor, compute: torch.dtype, epilogue: Epilogue) -> None:
    """Run `_double` on x and out [member, batch, row, column, channel] and a weight [member, c, n, ky, kx]."""
    members, batch, H, W, C = x.shape
    tile = doubling_tile()
    rows = batch * (W + 1)
    blocks = max(1, -(-rows // tile.rows))  # of an empty batch, too
    strip = -(-(H + 1) // max(1, -(-tile.programs // (blocks * members))))
    biased, relu, masked = epilogue.flags
    weight = weight.to(compute)
    launch(
        _double, (blocks * ((H + strip) // strip), members),
        x, weight, *epilogue.pointers(out), out, rows, strip,
        weight.stride(0), weight.stride(2), weight.stride(4), weight.stride(1),
        H=H, W=W, C=C, N=out.shape[-1], BIASED=biased, RELU=relu, MASKED=masked, COMPUTE=TRITON_TYPES[compute],
        BLOCK_M=tile.rows, **tile.launch,
        writes=(out,),
    )  # fmt: skip
