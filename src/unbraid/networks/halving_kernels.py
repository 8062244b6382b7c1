"""Triton kernels for layers that halve an image, k = 4, s = 2, p = 1: `correlate` and `kernel_gradient`.

`conv_kernels.py` reads the inputs of each position from the cache, and so every input four times, which bounds the
layers with large images. Here a program walks down the lines of some images. Lines 2 i - 1 and 2 i are read together,
and not again; windows of neighbours overlap by half:

    window[v, (r, kx, c)] = x[2 i - 1 + r, 2 v - 1 + kx, c]

They start the sums of output line i (ky = r), which wait for the next step, and complete those of line i - 1 (ky =
r + 2). One product computes both: its matrix has a column for each number n and each of the two. In the same way, one
product adds to the gradient of the weight for both lines.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_kernels import TRITON_TYPES, add_product_of_rows, add_sums_of_rows, parts_of
from unbraid.networks.conv_tiles import halving_gradient_tile, halving_tile
from unbraid.networks.epilogue import Epilogue, keep_signed, pack_signs
from unbraid.networks.partial_sums import add_parts


@triton.jit
@no_type_check
def _read_matrix(weight, k, of_n, of_tap, of_c, C: tl.constexpr, N: tl.constexpr):
    """Read matrix[(r, kx, c), (n, completes)]: ky = r for the line that begins, r + 2 for the one that is completed."""
    column = tl.arange(0, 2 * N)
    tap = k // C  # (r, kx)
    entry = (tap * of_tap + k % C * of_c)[:, None] + (column // 2 * of_n + column % 2 * 8 * of_tap)[None, :]
    return tl.load(weight + entry)


@triton.jit
@no_type_check
def _locate(tile, member, rows, V: tl.constexpr, BLOCK_M: tl.constexpr, WHOLE: tl.constexpr):
    """Return a tile's first image, then for each of its rows (batch, v): images after that, v, and if it exists.

    If a tile consists of whole lines of images, only its first image depends on the tile: the places of all numbers
    relative to it are computed once, before the loop. WHOLE: there are no rows after a member's last.
    """
    index = tl.arange(0, BLOCK_M)
    known = tl.full((BLOCK_M, 1), 1, tl.int1) if WHOLE else (index < rows - tile * BLOCK_M)[:, None]
    first = member * (rows // V)
    if BLOCK_M % V == 0:
        first, image, v = first + tile * (BLOCK_M // V), index // V, index % V
    else:
        image, v = ((tile * BLOCK_M + index) // V).to(tl.int64), (tile * BLOCK_M + index) % V
    return first, image, v, known


@triton.jit
@no_type_check
def _read_windows(x, first, image, v, known, i, k, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """Read lines 2 i - 1 and 2 i as windows [row, (r, kx, c)], with zeros outside of the image."""
    r = k // (4 * C)
    line = 2 * i - 1 + r
    across = (v * (2 * C) - C)[:, None] + (k % (4 * C))[None, :]
    inside = known & ((across >= 0) & (across < W * C)) & ((line >= 0) & (line < H))[None, :]
    place = (image * (H * W * C))[:, None] + (across + (r * (W * C))[None, :])
    start = x + first * (H * W * C) + (2 * i - 1) * (W * C)
    return tl.load(start + place, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["rows", "blocks"])
@no_type_check
def _halve(
    x, weight, bias, mask, out, bits, rows, blocks, of_member, of_n, of_tap, of_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Walk down `blocks` blocks of BLOCK_M rows (batch, v), and compute the outputs; `rows` counts a member's."""
    U: tl.constexpr = H // 2
    V: tl.constexpr = W // 2
    STEPS: tl.constexpr = U + 1
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, 8 * C)
    n = tl.arange(0, N)
    matrix = _read_matrix(weight + member * of_member, k, of_n, of_tap, of_c, C, N)
    if BIASED:
        added = tl.load(bias + member * N + n).to(tl.float32)
    waiting = tl.full((BLOCK_M, N), 0.0, tl.float32)
    MASK_BITS: tl.constexpr = mask.dtype.element_ty == tl.int32
    STORES_BITS: tl.constexpr = bits.dtype.element_ty == tl.int32
    WORDS: tl.constexpr = N // 32
    READ: tl.constexpr = WORDS if MASK_BITS else N  # numbers of the mask at one position
    if MASKED:
        ahead = tl.full((BLOCK_M, READ), 0, mask.dtype.element_ty)  # an image's first step completes no line
    first = tl.program_id(0) * blocks
    last = tl.minimum(first + blocks, (rows + BLOCK_M - 1) // BLOCK_M)
    for step in range(first * STEPS, last * STEPS):
        i = step % STEPS
        start, image, v, known = _locate(step // STEPS, member, rows, V, BLOCK_M, WHOLE)
        window = _read_windows(x, start, image, v, known, i, k, H, W, C).to(COMPUTE)
        position = (image * (U * V) + v)[:, None]
        line = start * (U * V) + (i - 1) * V
        wanted = known & (i > 0)
        if MASKED:  # read a step ahead, since nothing else hides how long it takes
            kept = ahead
            place = position * READ + tl.arange(0, READ)[None, :]
            ahead = tl.load(mask + (line + V) * READ + place, mask=known & (i < U), other=0)
        begun, completed = tl.split(tl.reshape(tl.dot(window, matrix), (BLOCK_M, N, 2)))
        made, waiting = waiting + completed, begun
        if BIASED:
            made += added[None, :]
        if RELU:
            made = tl.maximum(made, 0.0)
        if MASKED and MASK_BITS:
            made = keep_signed(made, kept, BLOCK_M, WORDS)
        elif MASKED:
            made = tl.where(kept > 0, made, 0.0)
        stored = made.to(out.dtype.element_ty)
        tl.store(out + line * N + (position * N + n[None, :]), stored, mask=wanted)
        if STORES_BITS:
            place = position * WORDS + tl.arange(0, WORDS)[None, :]
            tl.store(bits + line * WORDS + place, pack_signs(stored, BLOCK_M, WORDS), mask=wanted)


@triton.jit(do_not_specialize=["rows", "blocks", "members"])
@no_type_check
def _halve_gradient(
    x, small, sums, rows, blocks, members,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, TOTALS: tl.constexpr, SIZE: tl.constexpr,
    COMPUTE: tl.constexpr, PARTS: tl.constexpr, BLOCK_M: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of the weight over `blocks` blocks of BLOCK_M rows (batch, v); `rows` counts a member's.

    TOTALS, SIZE and PARTS are those of `_gradient`, but of the totals of columns only those of ky = 1 and 2, which meet
    every line once, are computed; the others are zeros. The sums are [program, member, SIZE].
    """
    U: tl.constexpr = H // 2
    V: tl.constexpr = W // 2
    STEPS: tl.constexpr = U + 1
    member = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, 8 * C)
    n = tl.arange(0, N)
    column = tl.arange(0, 2 * N)
    before = tl.full((BLOCK_M, N), 0.0, small.dtype.element_ty)
    total = tl.full((8 * C, 2 * N), 0.0, tl.float32)
    of_small = tl.full((BLOCK_M, N), 0.0, tl.float32)
    of_windows = tl.full((8 * C, 16), 0.0, tl.float32)
    ones = tl.full((BLOCK_M, 16), 1.0, COMPUTE if PARTS is None else PARTS)
    first = tl.program_id(0) * blocks
    last = tl.minimum(first + blocks, (rows + BLOCK_M - 1) // BLOCK_M)
    for step in range(first * STEPS, last * STEPS):
        i = step % STEPS
        start, image, v, known = _locate(step // STEPS, member, rows, V, BLOCK_M, WHOLE)
        window = _read_windows(x, start, image, v, known, i, k, H, W, C)
        place = ((image * (U * V) + v) * N)[:, None] + n[None, :]
        numbers = tl.load(small + (start * (U * V) + i * V) * N + place, mask=known & (i < U), other=0.0)
        both = tl.reshape(tl.join(numbers, before), (BLOCK_M, 2 * N))
        before = numbers  # zeros after an image's last line, for the next image
        total = add_product_of_rows(total, window, both, COMPUTE, PARTS, "tf32")
        if TOTALS == 1:
            of_small += numbers.to(tl.float32)
        if TOTALS == 2:
            of_windows = add_sums_of_rows(of_windows, window, ones, COMPUTE, PARTS)
    sums += (tl.program_id(0) * members + member) * SIZE
    tl.store(sums + (column // 2 * (16 * C) + column % 2 * (8 * C))[None, :] + k[:, None], total)
    if TOTALS == 1:
        tl.store(sums + 16 * C * N + n, tl.sum(of_small, 0))
    if TOTALS == 2:  # all columns are equal; rows ky = 1 and 2 of a kernel meet every line of the image once
        each = tl.max(of_windows, 1)
        r = k // (4 * C)
        tl.store(sums + 16 * C * N + k, tl.where(r == 1, each, 0.0))
        tl.store(sums + 16 * C * N + 8 * C + k, tl.where(r == 0, each, 0.0))


def launch_halving(x: Tensor, weight: Tensor, out: Tensor, compute: torch.dtype, epilogue: Epilogue) -> None:
    """Run `_halve` on x and out [member, batch, row, column, channel] and a weight [member, n, c, ky, kx]."""
    members, batch, H, W, C = x.shape
    biased, relu, masked = epilogue.flags
    tile = halving_tile(epilogue.reads_activations)
    rows = batch * W // 2
    programs, each = tile.share(rows, members)
    weight = weight.to(compute)
    launch(
        _halve, (programs, members),
        x, weight, *epilogue.pointers(out), out, epilogue.target(out), rows, each,
        weight.stride(0), weight.stride(1), weight.stride(4), weight.stride(2),
        H=H, W=W, C=C, N=out.shape[-1], BIASED=biased, RELU=relu, MASKED=masked, COMPUTE=TRITON_TYPES[compute],
        BLOCK_M=tile.rows, WHOLE=rows % tile.rows == 0, **tile.launch,
        writes=(out, epilogue.target(out)),
    )  # fmt: skip


def launch_halving_gradient(x: Tensor, small: Tensor, compute: torch.dtype, totals: int) -> Tensor:
    """Return what `launch_gradient` does, for images [member, batch, row, column, channel]."""
    (members, batch, H, W, C), N = x.shape, small.shape[-1]
    tile = halving_gradient_tile(compute.itemsize, totals == 2)
    rows = batch * W // 2
    programs, each = tile.share(rows, members)
    size = 16 * C * N + (0, N, 16 * C)[totals]
    sums = x.new_empty(programs, members, size, dtype=torch.float32)
    launch(
        _halve_gradient, (programs, members),
        x, small, sums, rows, each, members,
        H=H, W=W, C=C, N=N, TOTALS=totals, SIZE=size, COMPUTE=TRITON_TYPES[compute], PARTS=parts_of(compute),
        BLOCK_M=tile.rows, WHOLE=rows % tile.rows == 0, **tile.launch,
        writes=(sums,),
    )  # fmt: skip
    return add_parts(sums)
