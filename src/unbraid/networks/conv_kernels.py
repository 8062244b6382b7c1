"""Triton kernels for convolutions of stacked members: matrix products that never build the matrix of columns.

There are three operators, and their gradients are the same three:

    correlate        out[u, v, n] = bias[n] + Σ_{ky, kx, c} x[s u + ky - p, s v + kx - p, c] weight[n, c, ky, kx]
    spread           its transpose: out[s i + ky - p, s j + kx - p, n] += x[i, j, c] weight[c, n, ky, kx], plus bias[n]
    kernel_gradient  out[n, c, ky, kx] = Σ_{u, v} small[u, v, n] large[s u + ky - p, s v + kx - p, c]

`correlate` takes the weight of a `Conv2d`, `spread` that of a `ConvTranspose2d`; with the same weight, each is the
gradient of the other with respect to x. Images are [member, batch, channel, row, column], channels last in memory, and
so are weights: no layer copies a tensor to change its layout. A call for one member has no member axis; under vmap the
batching rule adds it.

A layer's epilogue adds the bias, applies a ReLU and multiplies by `mask > 0`. The mask differentiates a ReLU without a
separate pass: the layer after a ReLU masks the gradient of its input by that input.

The columns (kx, c) of one ky are contiguous in memory, so a tile of the matrix of columns is a plain read with a start
per output position. `spread` computes cells of s x s pixels: those of cell c are s c - p to s c - p + s - 1, and all of
them read the same inputs, c, c - 1, …, with kernel entries r, r + s, … for pixel r. So it is a correlation of stride 1
whose outputs are the numbers of a cell: it reads inputs once for all pixels of a cell, and multiplies no zeros.

Products are computed in the type `compute` and summed in float32. The fastest tile depends on the card
(`conv_tiles.py`); the order of a sum does not depend on the tile. Other kernels compute some layers that halve an image
or double it; `conv_choice.py` says which.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import INTERPRETED, launch
from unbraid.networks.conv_tiles import gradient_tile, product_tile
from unbraid.networks.epilogue import Epilogue, keep_signed, pack_signs
from unbraid.networks.partial_sums import add_parts
from unbraid.networks.weight_layout import along_inputs

PART = tl.bfloat16
"""Type of the two parts of a float32 in gradients of weights that may be computed in TF32."""

TRITON_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
@no_type_check
def _locate(image, u, v, number, known, SHAPE: tl.constexpr, N: tl.constexpr, CELL: tl.constexpr):
    """Return where the numbers of positions are in images of N channels, [position, number], and which exist."""
    OUT_H, OUT_W, STRIDE, PADDING, TRANSPOSED = SHAPE
    n, rx, ry = number % N, number // N % CELL, number // (N * CELL)
    if TRANSPOSED:
        y = (u * STRIDE - PADDING)[:, None] + ry[None, :]
        z = (v * STRIDE - PADDING)[:, None] + rx[None, :]
        inside = (y >= 0) & (y < OUT_H) & (z >= 0) & (z < OUT_W)
    else:
        y, z = u[:, None], v[:, None]
        inside = (u < OUT_H)[:, None]
    place = (image * (OUT_H * OUT_W * N))[:, None] + ((y * OUT_W + z) * N + n[None, :])
    return place, known[:, None] & (number < CELL * CELL * N)[None, :] & inside


@triton.jit
@no_type_check
def _store_masked(
    total, mask, out, bits, image, u, v, known, tile_n, masked,
    SHAPE: tl.constexpr, N: tl.constexpr, CELL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Multiply a tile of outputs by its mask, if it is `masked`, and store it with its bits (see `epilogue.py`)."""
    MASK_BITS: tl.constexpr = mask.dtype.element_ty == tl.int32
    STORES_BITS: tl.constexpr = bits.dtype.element_ty == tl.int32
    WORDS: tl.constexpr = BLOCK_N // 32
    place_out, wanted = _locate(image, u, v, tile_n * BLOCK_N + tl.arange(0, BLOCK_N), known, SHAPE, N, CELL)
    if MASK_BITS or STORES_BITS:
        word = tile_n * WORDS + tl.arange(0, WORDS)
        place_of_word, has_word = _locate(image, u, v, word, known, SHAPE, N // 32, CELL)
    if masked != 0:
        if MASK_BITS:
            words = tl.load(mask + place_of_word, mask=has_word, other=0)
            total = keep_signed(total, words, BLOCK_M, WORDS)
        else:
            total = tl.where(tl.load(mask + place_out, mask=wanted, other=0.0) > 0, total, 0.0)
    stored = total.to(out.dtype.element_ty)
    tl.store(out + place_out, stored, mask=wanted)
    if STORES_BITS:
        tl.store(bits + place_of_word, pack_signs(stored, BLOCK_M, WORDS), mask=has_word)


@triton.jit(do_not_specialize=["rows", "biased", "relu", "masked"])
@no_type_check
def _product(
    x, weight, bias, mask, out, bits, rows, biased, relu, masked, of_member, of_n, of_tap, of_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    TRANSPOSED: tl.constexpr, COMPUTE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute one tile [BLOCK_M positions, BLOCK_N numbers] of `correlate`, or of `spread` if TRANSPOSED.

    `rows` counts the positions (batch, u, v), U by V in an image: pixels of `correlate`, cells of `spread`. A pixel of
    `correlate` has N numbers, a cell of `spread` STRIDE * STRIDE * N. `of_…` are the strides of the weight. A mask of
    int32 has bits; those of the output are stored if `bits` is of int32 (see `epilogue.py`).
    """
    CELL: tl.constexpr = STRIDE if TRANSPOSED else 1  # pixels along a side of a position
    NUMBERS: tl.constexpr = CELL * CELL * N
    TAPS: tl.constexpr = (KERNEL + CELL - 1) // CELL
    RUN: tl.constexpr = TAPS * C  # numbers of one row of the kernel, contiguous in x
    WHOLE: tl.constexpr = RUN % BLOCK_K == 0  # one row of the kernel per step: its bounds are checked per position
    TILES_N: tl.constexpr = (NUMBERS + BLOCK_N - 1) // BLOCK_N
    # Programs for the numbers of one tile of positions are adjacent, so its inputs stay in the cache.
    tile = tl.program_id(0) // TILES_N
    number = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    n, rx, ry = number % N, number // N % CELL, number // (N * CELL)
    member = tl.program_id(1).to(tl.int64)
    images = rows // (U * V)
    x += member * images * (H * W * C)
    weight += member * of_member

    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    image = (row // (U * V)).to(tl.int64)  # 32 bits suffice inside an image, but not across large batches
    u, v = row // V % U, row % V
    if TRANSPOSED:
        u, v = u + PADDING // STRIDE, v + PADDING // STRIDE  # the first cell with a pixel in the image has that number
        first_y, first_x = u - (TAPS - 1), v - (TAPS - 1)
    else:
        first_y, first_x = u * STRIDE - PADDING, v * STRIDE - PADDING
    start = first_x * C
    pictures = x + image * (H * W * C)

    total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for step in range((TAPS * RUN + BLOCK_K - 1) // BLOCK_K):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        tap = step * BLOCK_K // RUN if WHOLE else k // RUN
        j = k - tap * RUN
        line = first_y[:, None] + (tap if WHOLE else tap[None, :])
        place = start[:, None] + j[None, :]
        inside = (line >= 0) & (line < H) & (row < rows)[:, None] & (place >= 0) & (place < W * C)
        if TAPS * RUN % BLOCK_K != 0:
            inside = inside & (k < TAPS * RUN)[None, :]
        column = tl.load(pictures[:, None] + (line * (W * C) + place), mask=inside, other=0.0)
        known = (k < TAPS * RUN)[:, None] & (number < NUMBERS)[None, :]
        ky, kx = tap if WHOLE else tap[:, None], (j // C)[:, None]
        if TRANSPOSED:
            ky, kx = (TAPS - 1 - ky) * STRIDE + ry[None, :], (TAPS - 1 - kx) * STRIDE + rx[None, :]
            if KERNEL % STRIDE != 0:
                known = known & (kx < KERNEL) & (ky < KERNEL)
        entry = (ky * KERNEL + kx) * of_tap + (j % C * of_c)[:, None]
        matrix = tl.load(weight + (n * of_n)[None, :] + entry, mask=known, other=0.0)
        total = tl.dot(column.to(COMPUTE), matrix, total, input_precision=PRECISION)

    added = tl.load(bias + member * N + n, mask=(number < NUMBERS) & (biased != 0), other=0.0)
    total += added.to(tl.float32)[None, :]
    if relu != 0:
        total = tl.maximum(total, 0.0)
    image += member * images
    tile_n = tl.program_id(0) % TILES_N
    shape: tl.constexpr = (OUT_H, OUT_W, STRIDE, PADDING, TRANSPOSED)
    _store_masked(total, mask, out, bits, image, u, v, row < rows, tile_n, masked, shape, N, CELL, BLOCK_M, BLOCK_N)


@triton.jit
@no_type_check
def _read_rows(large, small, begin, end, tap, j, n, SHAPE: tl.constexpr):
    """Read some rows of the columns of `large` and of the numbers of `small`, [BLOCK_R, …]; zeros from `end` on.

    If these are rows of whole images, only the first image depends on `begin`, a multiple of BLOCK_R: the places of
    all numbers relative to it are computed once, before the loop.
    """
    H, W, C, N, U, V, KERNEL, STRIDE, PADDING, BLOCK_R = SHAPE
    index = tl.arange(0, BLOCK_R)
    if BLOCK_R % (U * V) == 0:
        row, image = index, index // (U * V)
        large += tl.cast(begin // (U * V), tl.int64) * (H * W * C)
    else:
        row = begin + index
        image = (row // (U * V)).to(tl.int64)
    line = (row // V % U * STRIDE - PADDING)[:, None] + tap
    place = ((row % V * STRIDE - PADDING) * C)[:, None] + j[None, :]
    known = (index < end - begin)[:, None]
    inside = known & ((line >= 0) & (line < H) & (place >= 0) & (place < W * C) & (tap < KERNEL))
    column = tl.load(large + ((image * (H * W * C))[:, None] + (line * (W * C) + place)), mask=inside, other=0.0)
    numbers = small + tl.cast(begin, tl.int64) * N + (index[:, None] * N + n[None, :])
    return column, tl.load(numbers, mask=known & (n < N)[None, :], other=0.0)


@triton.jit
@no_type_check
def add_product_of_rows(total, columns, numbers, COMPUTE: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """Return total + columnsᵀ numbers, both [row, …].

    PARTS is None, or a type of 16 bits: it multiplies each float32 as a sum of two such numbers, in three products (16
    bits of a bfloat16), because tensor cores cannot read a transposed float32.
    """
    if PARTS is None:
        total = tl.dot(tl.trans(columns.to(COMPUTE)), numbers.to(COMPUTE), total, input_precision=PRECISION)
    else:
        upper, top = columns.to(PARTS), numbers.to(PARTS)
        lower = (columns - upper.to(tl.float32)).to(PARTS)
        rest = (numbers - top.to(tl.float32)).to(PARTS)
        total = tl.dot(tl.trans(upper), top, total)
        total = tl.dot(tl.trans(upper), rest, total)
        total = tl.dot(tl.trans(lower), top, total)
    return total


@triton.jit
@no_type_check
def add_sums_of_rows(total, columns, ones, COMPUTE: tl.constexpr, PARTS: tl.constexpr):
    """Return total + columnsᵀ ones: a product is faster than other sums."""
    if PARTS is None:
        total = tl.dot(tl.trans(columns.to(COMPUTE)), ones, total)
    else:
        upper = columns.to(PARTS)
        total = tl.dot(tl.trans(upper), ones, total)
        total = tl.dot(tl.trans((columns - upper.to(tl.float32)).to(PARTS)), ones, total)
    return total


@triton.jit
@no_type_check
def _add_small(total, numbers, ones, HOW: tl.constexpr):
    """Add the rows of numbers to a total: as they are (0), by a product with ones (1), or of ones with them (2).

    Numbers on their way to shared memory must be read there by products alone. If registers read them as well, Triton
    (3.6) keeps a buffer less of them: it copies the next ones over those that the last product may still read.
    """
    if HOW == 0:
        total += numbers.to(tl.float32)
    elif HOW == 1:
        total = tl.dot(tl.trans(numbers), ones, total)
    else:  # few numbers make no product of the kind that reads shared memory, with 64 rows or more
        total = tl.dot(ones, numbers, total)
    return total


@triton.jit(do_not_specialize=["members", "rows", "chunk"])
@no_type_check
def _gradient(
    large, small, sums, members, rows, chunk,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, TOTALS: tl.constexpr, SIZE: tl.constexpr,
    COMPUTE: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Compute one tile [BLOCK_K, BLOCK_N] of `kernel_gradient` over `chunk` of the rows (batch, u, v).

    For the gradient of a bias, TOTALS also sums `small` over the rows (1) or each entry of the columns (2). A member's
    results are SIZE numbers: the sums, then the totals. PARTS: see `add_product_of_rows`.
    """
    RUN: tl.constexpr = KERNEL * C
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(0) // TILES_N * BLOCK_K + tl.arange(0, BLOCK_K)
    split = tl.program_id(1)
    member = tl.program_id(2).to(tl.int64)
    large += member * (rows // (U * V)) * (H * W * C)
    small += member * rows * N
    sums += (split * members + member) * SIZE
    tap = tl.program_id(0) // TILES_N * BLOCK_K // RUN if RUN % BLOCK_K == 0 else (k // RUN)[None, :]
    j = k % RUN

    total = tl.full((BLOCK_K, BLOCK_N), 0.0, tl.float32)
    HOW: tl.constexpr = 0 if AHEAD or small.dtype.element_ty != COMPUTE else 1 if BLOCK_N >= 64 else 2
    if TOTALS == 1:
        of_small = tl.full(((BLOCK_R, BLOCK_N), (BLOCK_N, 16), (64, BLOCK_N))[HOW], 0.0, tl.float32)
        ones = tl.full((64, BLOCK_R) if HOW == 2 else (BLOCK_R, 16), 1.0, COMPUTE)
    if TOTALS == 2 and PARTS is not None:  # two more products would take registers from the three that count
        of_large = tl.full((BLOCK_R, BLOCK_K), 0.0, tl.float32)
    elif TOTALS == 2:
        ones = tl.full((BLOCK_R, 16), 1.0, COMPUTE)
        of_large = tl.full((BLOCK_K, 16), 0.0, tl.float32)
    shape: tl.constexpr = (H, W, C, N, U, V, KERNEL, STRIDE, PADDING, BLOCK_R)
    end = tl.minimum(split * chunk + chunk, rows)
    if AHEAD:
        next_column, next_signal = _read_rows(large, small, split * chunk, end, tap, j, n, shape)
    for begin in range(split * chunk, end, BLOCK_R):
        if AHEAD:  # the next rows are on their way while these are multiplied
            column, signal = next_column, next_signal
            next_column, next_signal = _read_rows(large, small, begin + BLOCK_R, end, tap, j, n, shape)
        else:
            column, signal = _read_rows(large, small, begin, end, tap, j, n, shape)
        column = column.to(COMPUTE)
        total = add_product_of_rows(total, column, signal, COMPUTE, PARTS, PRECISION)
        if TOTALS == 1:
            of_small = _add_small(of_small, signal, ones, HOW)
        if TOTALS == 2 and PARTS is not None:
            of_large += column
        elif TOTALS == 2:
            of_large = tl.dot(tl.trans(column), ones, of_large, input_precision=PRECISION)

    wanted = (k < KERNEL * RUN)[:, None] & (n < N)[None, :]
    tl.store(sums + n[None, :] * (KERNEL * RUN) + k[:, None], total, mask=wanted)
    if TOTALS == 1:
        first = (n < N) & (tl.program_id(0) // TILES_N == 0)
        each = tl.sum(of_small, 0) if HOW == 0 else tl.max(of_small, 2 - HOW)  # those of a product are equal
        tl.store(sums + N * KERNEL * RUN + n, each, mask=first)
    if TOTALS == 2:
        first = (k < KERNEL * RUN) & (tl.program_id(0) % TILES_N == 0)
        each = tl.sum(of_large, 0) if PARTS is not None else tl.max(of_large, 1)  # columns of the product are equal
        tl.store(sums + N * KERNEL * RUN + k, each, mask=first)


def launch_product(
    transposed: bool, x: Tensor, weight: Tensor, out: Tensor, stride: int, padding: int, compute: torch.dtype,
    epilogue: Epilogue,
) -> None:  # fmt: skip
    """Run `_product` on x and out [member, batch, row, column, channel], contiguous, and a weight [member, …]."""
    members, batch, H, W, C = x.shape
    N, kernel = out.shape[-1], weight.shape[-1]
    cell = stride if transposed else 1
    U, V = (_count_cells(side, stride, padding) if transposed else side for side in out.shape[2:4])
    run = C * -(-kernel // cell)
    half = compute != torch.float32
    tile = product_tile(H, run, cell * cell * N, transposed, half)
    weight = weight.to(compute)  # a small copy is faster than a conversion in every program
    if transposed and not half:  # tensor cores read float32 only along the summed axis
        weight = along_inputs(weight)
    of_n, of_c = (weight.stride(2), weight.stride(1)) if transposed else (weight.stride(1), weight.stride(2))
    parts = -(-cell * cell * N // tile.block_n)
    launch(
        _product, (-(-batch * U * V // tile.block_m) * parts, members),
        x, weight, *epilogue.pointers(weight), out, epilogue.target(out), batch * U * V, *epilogue.flags,
        weight.stride(0), of_n, weight.stride(4), of_c,
        H=H, W=W, C=C, N=N, U=U, V=V, OUT_H=out.shape[2], OUT_W=out.shape[3],
        KERNEL=kernel, STRIDE=stride, PADDING=padding, TRANSPOSED=transposed,
        COMPUTE=TRITON_TYPES[compute], PRECISION=_precision(),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, **tile.launch,
        writes=(out, epilogue.target(out)),
    )  # fmt: skip


def launch_gradient(
    large: Tensor, small: Tensor, kernel: int, stride: int, padding: int, compute: torch.dtype, totals: int
) -> Tensor:
    """Return sums (n, ky, kx, c), then the totals, [member, …], of channels-last images."""
    members, batch, H, W, C = large.shape
    U, V, N = small.shape[2:]
    rows, entries = batch * U * V, kernel * kernel * C
    half = compute != torch.float32
    tile = gradient_tile(entries, N, totals == 2, half)
    tiles = -(-N // tile.block_n) * -(-entries // tile.block_k)
    splits = max(1, min(-(-tile.programs // (tiles * members)), rows // (4 * tile.block_m)))
    chunk = max(1, -(-rows // (splits * tile.block_m))) * tile.block_m  # of an empty batch, too
    splits = max(1, -(-rows // chunk))
    size = N * entries + (0, N, entries)[totals]
    sums = large.new_empty(splits, members, size, dtype=torch.float32)
    launch(
        _gradient, (tiles, splits, members),
        large, small, sums, members, rows, chunk,
        H=H, W=W, C=C, N=N, U=U, V=V, KERNEL=kernel, STRIDE=stride, PADDING=padding, TOTALS=totals, SIZE=size,
        COMPUTE=TRITON_TYPES[compute],
        PARTS=parts_of(compute) if tile.splits_tf32 else None, PRECISION=_precision(), AHEAD=tile.ahead,
        BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, BLOCK_R=tile.block_m, **tile.launch,
        writes=(sums,),
    )  # fmt: skip
    return add_parts(sums)


def _count_cells(side: int, stride: int, padding: int) -> int:
    """Return the number of cells of `spread` along a side of the output."""
    return (side - 1 + padding) // stride - padding // stride + 1


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def parts_of(compute: torch.dtype) -> tl.dtype | None:
    """Return PARTS of `add_product_of_rows` for a type."""
    return PART if compute == torch.float32 and _precision() == "tf32" else None


def count_bytes(compute: torch.dtype) -> int:
    """Return the size of a number that tensor cores multiply, or 0 for float32 in full precision, which they do not."""
    return 0 if compute == torch.float32 and _precision() == "ieee" else compute.itemsize


def runs_kernels(x: Tensor, compute: torch.dtype) -> bool:
    """Return whether the kernels compute this, or torch. Triton's interpreter cannot multiply bfloat16."""
    return x.is_cuda or (INTERPRETED and torch.bfloat16 not in (x.dtype, compute))


def new_images(like: Tensor, rows: int, columns: int, channels: int, dtype: torch.dtype) -> Tensor:
    """Return empty images, channels last in memory."""
    return like.new_empty(*like.shape[:-3], rows, columns, channels, dtype=dtype).movedim(-1, -3)
