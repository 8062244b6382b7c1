"""Triton kernels for layers that read pictures of one channel (see `conv_kernels.py` for the operators).

A position of the first layer has so few kernel entries that collecting them one by one takes more instructions than all
else. Here a row of the product is a group of `GROUP` neighbouring positions (u, v), whose entries overlap: they lie in
KERNEL windows of neighbouring pixels, each read as whole vectors. The matrix of weights has a column for each number
(g, n) of the group, with zeros where a pixel is no entry of position g:

    out[u, GROUP w + g, n] = Σ_{ky, j} window[u, w, ky, j] matrix[(ky, j), (g, n)]
    matrix[(ky, j), (g, n)] = weight[n, ky, j - LEAD + p - s g], or 0 outside of the kernel

Tensor cores multiply these zeros faster than other units could avoid them. The numbers of a group are contiguous in
memory. The gradient of the weight is Σ window[…, (ky, j)] small[…, (g, n)], from which each g has one element for
every entry of the kernel; those of all g are added at the end, with the partial sums of the programs.

One program does several tiles, so it reads the weight once. It computes the gradient of a weight, or that and the
product, which is what the backward pass of a transposed layer needs: both read its input, one as a mask. For a product
alone `conv_kernels.py` is as fast.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_kernels import TRITON_TYPES, add_product_of_rows, add_sums_of_rows, parts_of
from unbraid.networks.conv_tiles import GROUP, HALVING, LEAD, SPAN, window_tile
from unbraid.networks.partial_sums import add_parts


@triton.jit
@no_type_check
def _read_windows(pictures, tile, rows, k, SHAPE: tl.constexpr):
    """Read the windows of a tile's groups, [BLOCK_M, (ky, j)], with zeros outside of the picture.

    If a tile consists of whole lines of one picture, only its first line depends on the tile: the places of all
    pixels relative to it are computed once, before the loop.
    """
    H, W, U, GROUPS, STRIDE, PADDING, SPAN, LEAD, WHOLE, BLOCK_M = SHAPE
    TILES: tl.constexpr = U * GROUPS // BLOCK_M  # of a picture
    index = tl.arange(0, BLOCK_M)
    if WHOLE and BLOCK_M % GROUPS == 0:
        row, first = index, tile % TILES * (BLOCK_M // GROUPS * STRIDE) - PADDING
        picture = pictures + tl.cast(tile // TILES, tl.int64) * (H * W)
    else:
        row, first = tile * BLOCK_M + index, -PADDING
        picture = pictures + (row // (GROUPS * U)).to(tl.int64)[:, None] * (H * W)
    line = (row // GROUPS % U * STRIDE)[:, None] + (k // SPAN)[None, :]
    place = (row % GROUPS * (W // GROUPS) - LEAD)[:, None] + (k % SPAN)[None, :]
    inside = (line >= -first) & (line < H - first) & ((place >= 0) & (place < W))
    if not WHOLE:
        inside = inside & (row < rows)[:, None]
    return tl.load(picture + first * W + (line * W + place), mask=inside, other=0.0)


@triton.jit
@no_type_check
def _read_tile(numbers, known, WHOLE: tl.constexpr, BLOCK_M: tl.constexpr, NUMBERS: tl.constexpr):
    """Read the numbers of a tile's groups, [BLOCK_M, NUMBERS], with zeros for groups that are not `known`."""
    place = tl.arange(0, BLOCK_M)[:, None] * NUMBERS + tl.arange(0, NUMBERS)[None, :]
    return tl.load(numbers + place) if WHOLE else tl.load(numbers + place, mask=known, other=0.0)


@triton.jit
@no_type_check
def _store_gradient(sums, total, of_pictures, k, number, SHAPE: tl.constexpr, SIZE: tl.constexpr):
    """Store what each g adds to the gradient of the weight (n, ky, kx), then to the totals: [g, member, SIZE]."""
    KERNEL, STRIDE, PADDING, SPAN, LEAD, GROUPED, N, TOTALS = SHAPE
    ENTRIES: tl.constexpr = KERNEL * KERNEL
    g = number // N
    kx = (k % SPAN - (LEAD - PADDING))[:, None] - (g * STRIDE)[None, :]
    entry = (number % N * ENTRIES)[None, :] + (k // SPAN * KERNEL)[:, None] + kx
    wanted = (kx >= 0) & (kx < KERNEL)
    if TOTALS == 1:  # column 0 of the windows was one
        entry = tl.where((k == 0)[:, None], (N * ENTRIES + number % N)[None, :], entry)
        wanted = wanted | (k == 0)[:, None]
    tl.store(sums + g[None, :] * SIZE + entry, total, mask=wanted)
    if TOTALS == 2:
        group = tl.arange(0, GROUPED)
        kx = (k % SPAN - (LEAD - PADDING))[:, None] - (group * STRIDE)[None, :]
        entry = N * ENTRIES + (k // SPAN * KERNEL)[:, None] + kx
        each = tl.max(of_pictures, 1)[:, None] + tl.full((1, GROUPED), 0.0, tl.float32)  # all columns are equal
        tl.store(sums + group[None, :] * SIZE + entry, each, mask=(kx >= 0) & (kx < KERNEL))


@triton.jit(do_not_specialize=["rows", "tiles", "members"])
@no_type_check
def _windows(
    pictures, weight, out, small, sums, rows, tiles, members, of_member, of_n, of_tap,
    H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, U: tl.constexpr, V: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PRODUCT: tl.constexpr, MASKED: tl.constexpr, TOTALS: tl.constexpr, SIZE: tl.constexpr,
    COMPUTE: tl.constexpr, PARTS: tl.constexpr,
    GROUPED: tl.constexpr, SPAN: tl.constexpr, LEAD: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute what `tiles` tiles of BLOCK_M groups add to the gradient of the weight, and their outputs if PRODUCT.

    `rows` counts the groups (batch, u, w) of a member. MASKED multiplies the outputs by `small > 0`. TOTALS, SIZE
    and PARTS are those of `_gradient`, but the sums are [program, g, member, SIZE].
    """
    GROUPS: tl.constexpr = V // GROUPED
    NUMBERS: tl.constexpr = GROUPED * N
    WHOLE: tl.constexpr = U * GROUPS % BLOCK_M == 0
    shape: tl.constexpr = (H, W, U, GROUPS, STRIDE, PADDING, SPAN, LEAD, WHOLE, BLOCK_M)
    member = tl.program_id(1).to(tl.int64)
    images = rows // (U * GROUPS)
    pictures += member * images * (H * W)
    k = tl.arange(0, KERNEL * SPAN)
    number = tl.arange(0, NUMBERS)
    if PRODUCT:
        kx = (k % SPAN - (LEAD - PADDING))[:, None] - (number // N * STRIDE)[None, :]
        entry = (number % N * of_n)[None, :] + ((k // SPAN * KERNEL)[:, None] + kx) * of_tap
        matrix = tl.load(weight + member * of_member + entry, mask=(kx >= 0) & (kx < KERNEL), other=0.0)
    total = tl.full((KERNEL * SPAN, NUMBERS), 0.0, tl.float32)
    ones = tl.full((BLOCK_M, 16), 1.0, COMPUTE if PARTS is None else PARTS)
    of_pictures = tl.full((KERNEL * SPAN, 16), 0.0, tl.float32)
    begin = tl.program_id(0) * tiles
    end = tl.minimum(begin + tiles, (rows + BLOCK_M - 1) // BLOCK_M)
    for tile in range(begin, end):
        window = _read_windows(pictures, tile, rows, k, shape)
        start = (member * rows + tile * BLOCK_M) * NUMBERS
        known = (tile * BLOCK_M + tl.arange(0, BLOCK_M) < rows)[:, None]
        numbers = _read_tile(small + start, known, WHOLE, BLOCK_M, NUMBERS)
        column = tl.where((k == 0)[None, :], 1.0, window.to(tl.float32)) if TOTALS == 1 else window
        total = add_product_of_rows(total, column, numbers, COMPUTE, PARTS, "tf32")
        if TOTALS == 2:
            of_pictures = add_sums_of_rows(of_pictures, column, ones, COMPUTE, PARTS)
        if PRODUCT:
            made = tl.dot(window.to(COMPUTE), matrix)
            if MASKED:
                made = tl.where(numbers > 0, made, 0.0)
            place = out + start + (tl.arange(0, BLOCK_M)[:, None] * NUMBERS + number[None, :])
            if WHOLE:
                tl.store(place, made.to(out.dtype.element_ty))
            else:
                tl.store(place, made.to(out.dtype.element_ty), mask=known)
    sums += (tl.program_id(0).to(tl.int64) * members * GROUPED + member * GROUPED) * SIZE
    of: tl.constexpr = (KERNEL, STRIDE, PADDING, SPAN, LEAD, GROUPED, N, TOTALS)
    _store_gradient(sums, total, of_pictures, k, number, of, SIZE)


class Product(NamedTuple):
    """A product to compute: the weight [member, n, 1, ky, kx], the images for it, and whether `small` masks it."""

    weight: Tensor
    out: Tensor
    masked: bool


class Gradient(NamedTuple):
    """A gradient of a weight to compute: the images [member, batch, row, column, n], and TOTALS of `_gradient`."""

    small: Tensor
    totals: int


def differentiate_windows(
    pictures: Tensor, compute: torch.dtype, gradient: Gradient, product: Product | None = None
) -> Tensor:
    """Return the gradient of a weight as `launch_gradient` does, and compute a product in the same pass.

    Pictures are [member, batch, row, column, 1].
    """
    (members, batch, H, W, _), (kernel, stride, padding) = pictures.shape, HALVING
    small, totals = gradient
    U, V, N = small.shape[2:]
    rows, entries = batch * U * V // GROUP, kernel * kernel
    tile = window_tile(product is not None, compute.itemsize)
    programs, each = tile.share(rows, members)
    size = N * entries + (0, N, entries)[totals]
    sums = pictures.new_empty(programs, members, GROUP, size, dtype=torch.float32)
    weight, out, masked = (pictures, small, False) if product is None else product
    weight = weight if product is None else weight.to(compute)
    launch(
        _windows, (programs, members),
        pictures, weight, out, small, sums, rows, each, members,
        weight.stride(0), weight.stride(1), weight.stride(4),
        H=H, W=W, N=N, U=U, V=V, KERNEL=kernel, STRIDE=stride, PADDING=padding,
        PRODUCT=product is not None, MASKED=masked, TOTALS=totals, SIZE=size,
        COMPUTE=TRITON_TYPES[compute], PARTS=parts_of(compute),
        GROUPED=GROUP, SPAN=SPAN, LEAD=LEAD, BLOCK_M=tile.rows, **tile.launch,
        writes=[sums] if product is None else [sums, out],
    )  # fmt: skip
    return add_parts(sums)
