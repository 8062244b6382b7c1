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
from unbraid.networks.conv_kernels import TRITON_TYPES
from unbraid.networks.conv_tiles import doubling_tile
from unbraid.networks.epilogue import Epilogue, keep_signed, pack_signs


@triton.jit
@no_type_check
def _locate(image, v, known, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """Return ry of the numbers (ry, rx, n) of cells, whether a line has their pixels, and their places for u = 0."""
    number = tl.arange(0, 4 * N)
    ry, rx = number // (2 * N), number // N % 2
    pixel = (2 * v - 1)[:, None] + rx[None, :]
    of_number = (ry - 1) * (2 * W * N) + number % (2 * N)
    place = (image * (4 * H * W * N) + (2 * v - 1) * N)[:, None] + of_number[None, :]
    return ry, known & (pixel >= 0) & (pixel < 2 * W), place


@triton.jit(do_not_specialize=["rows", "strip"])
@no_type_check
def _double(
    x, weight, bias, mask, out, bits, rows, strip, of_member, of_n, of_tap, of_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute `strip` lines of cells for BLOCK_M of the rows (batch, v) of a member."""
    LINE: tl.constexpr = 2 * W * N
    MASK_BITS: tl.constexpr = mask.dtype.element_ty == tl.int32
    STORES_BITS: tl.constexpr = bits.dtype.element_ty == tl.int32
    WORDS: tl.constexpr = N // 32
    READ: tl.constexpr = WORDS if MASK_BITS else N  # numbers of the mask in one pixel
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
    ry, has_pixel, target = _locate(image, v, known, H, W, N)
    rx = number // N % 2

    tap = (ry * 4 + rx + 10)[None, :] - (a * 8 + b * 2)[:, None]
    entry = (k % C * of_c)[:, None] + (number % N * of_n)[None, :] + tap * of_tap
    matrix = tl.load(weight + member * of_member + entry)
    if BIASED:
        added = tl.load(bias + member * N + number % N).to(tl.float32)
    if MASKED:  # read a line ahead, since nothing else hides how long it takes
        mask_ry, mask_pixel, source_of_mask = _locate(image, v, known, H, W, READ)
        begin = 2 * first + mask_ry
        there = mask_pixel & ((begin > 0) & (begin <= 2 * H))[None, :]
        ahead = tl.load(mask + source_of_mask + 2 * first * (2 * W * READ), mask=there, other=0)
    if STORES_BITS:
        word_ry, word_pixel, target_of_word = _locate(image, v, known, H, W, WORDS)
    for u in range(first, tl.minimum(first + strip, H + 1)):
        has_line = (u + a > 0) & (u + a <= H)
        window = tl.load(source + u * (W * C), mask=inside & has_line[None, :], other=0.0)
        line = 2 * u + ry
        if MASKED:
            kept = ahead
            later = mask_pixel & (2 * u + mask_ry + 2 <= 2 * H)[None, :]
            ahead = tl.load(mask + source_of_mask + (2 * u + 2) * (2 * W * READ), mask=later, other=0)
        made = tl.dot(window.to(COMPUTE), matrix)
        if BIASED:
            made += added[None, :]
        if RELU:
            made = tl.maximum(made, 0.0)
        stored = made.to(out.dtype.element_ty)
        if MASKED and MASK_BITS:
            stored = keep_signed(stored, kept, BLOCK_M, 4 * WORDS)
        elif MASKED:
            stored = tl.where(kept > 0, stored, 0.0)
        tl.store(out + target + 2 * u * LINE, stored, mask=has_pixel & ((line > 0) & (line <= 2 * H))[None, :])
        if STORES_BITS:
            word_line = 2 * u + word_ry
            inner = word_pixel & ((word_line > 0) & (word_line <= 2 * H))[None, :]
            words = pack_signs(stored, BLOCK_M, 4 * WORDS)
            tl.store(bits + target_of_word + 2 * u * (2 * W * WORDS), words, mask=inner)


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
        x, weight, *epilogue.pointers(out), out, epilogue.target(out), rows, strip,
        weight.stride(0), weight.stride(2), weight.stride(4), weight.stride(1),
        H=H, W=W, C=C, N=out.shape[-1], BIASED=biased, RELU=relu, MASKED=masked, COMPUTE=TRITON_TYPES[compute],
        BLOCK_M=tile.rows, **tile.launch,
        writes=(out, epilogue.target(out)),
    )  # fmt: skip
