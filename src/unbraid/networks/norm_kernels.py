"""Triton kernels that normalise maps of stacked members, scale and shift them, and apply a ReLU.

The numbers of a *group* share one mean and one variance per channel. A group is an image in instance normalisation
(Ulyanov et al. 2016) and a member's batch in BatchNorm (Ioffe and Szegedy 2015). In both cases it is a matrix
x [rows, channels] that is contiguous in memory, because maps are channels last (`conv_kernels.py`):

    normal = (x - mean) / sqrt(variance + epsilon)        pre = scale normal + shift        out = pre, or max(pre, 0)

With R rows in a group and g = the gradient of `pre`, the gradients are (Ioffe and Szegedy 2015, section 3)

    dshift = Σ g      dscale = Σ g normal      dx = scale (g - (dshift + normal dscale) / R) / sqrt(variance + epsilon)

Sums are over the rows of a group. The gradient of a ReLU needs the sign of `pre`, which is computed again from x: that
costs a multiplication, and reading `out` would cost memory traffic.

A small group is read once: one program holds all its rows for some channels. A larger one is read twice: programs sum
*chunks* of its rows, a kernel merges the chunks in a fixed order, and a second pass computes the result
(`norm_blocks.py`). Everything is computed in float32.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.norm_blocks import Groups


@triton.jit
@no_type_check
def _locate(rows, chunk, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the group, the chunk and the channels of this program, and the first row and the number of its rows."""
    TILES: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    chunks = tl.cdiv(rows, chunk)
    program = tl.program_id(0)
    part = program // TILES % chunks
    group = (program // TILES // chunks).to(tl.int64)  # 32 bits suffice inside a chunk, but not across groups
    return group, part, program % TILES * BLOCK_C + tl.arange(0, BLOCK_C), tl.minimum(chunk, rows - part * chunk)


@triton.jit
@no_type_check
def _read_affine(moments, scale, shift, group, c, epsilon, C: tl.constexpr):
    """Return mean, 1 / deviation, scale and shift of some channels."""
    known = c < C
    mean = tl.load(moments + group * (2 * C) + c, mask=known, other=0.0)
    variance = tl.load(moments + group * (2 * C) + C + c, mask=known, other=0.0)
    factor = tl.load(scale + group * C + c, mask=known, other=0.0)
    return mean, tl.rsqrt(variance + epsilon), factor, tl.load(shift + group * C + c, mask=known, other=0.0)


@triton.jit
@no_type_check
def _transform(centred, inverse, scale, shift, RELU: tl.constexpr):
    """Return the output; forward and backward share this, so that both see the same sign."""
    pre = centred * (inverse * scale)[None, :] + shift[None, :]
    return tl.where(pre < 0, 0.0, pre) if RELU else pre  # unlike a maximum, this keeps NaN


@triton.jit
@no_type_check
def _read_gradient(grad, centred, inverse, scale, shift, place, inside, RELU: tl.constexpr):
    """Return the gradient of `pre`."""
    signal = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    return tl.where(_transform(centred, inverse, scale, shift, True) > 0, signal, 0.0) if RELU else signal


@triton.jit(do_not_specialize=["rows", "chunk"])
@no_type_check
def _chunk_moments(
    x, moments, rows, chunk, C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Store mean and variance of each chunk, [group, chunk, 2, C].

    The sums are those of distances from the first row. The mean of the squares minus the square of the mean would lose
    all digits where the mean is large and the variance small. With a shift by one of n values it loses n-fold
    precision at worst, if that value is the only one apart, and nothing if all values are equal (Chan, Golub and
    LeVeque 1983, section 3).
    """
    group, part, c, count = _locate(rows, chunk, C, BLOCK_C)
    x += (group * rows + part * chunk) * C
    first = tl.load(x + c, mask=c < C, other=0.0).to(tl.float32)
    total = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    squares = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        inside = (row < count)[:, None] & (c < C)[None, :]
        value = tl.load(x + (row * C)[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)
        distance = tl.where(inside, value - first[None, :], 0.0)
        total += distance
        squares += distance * distance
    mean = tl.sum(total, 0) / count
    variance = tl.maximum(tl.sum(squares, 0) / count - mean * mean, 0.0)
    out = moments + (group * tl.cdiv(rows, chunk) + part) * (2 * C) + c
    tl.store(out, first + mean, mask=c < C)
    tl.store(out + C, variance, mask=c < C)


@triton.jit(do_not_specialize=["rows", "chunk"])
@no_type_check
def _merge_moments(
    parts, moments, rows, chunk, C: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Merge the moments of chunks into [group, 2, C], again by distances, from the first mean."""
    TILES: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    group = (tl.program_id(0) // TILES).to(tl.int64)
    c = tl.program_id(0) % TILES * BLOCK_C + tl.arange(0, BLOCK_C)
    chunks, part = tl.cdiv(rows, chunk), tl.arange(0, CHUNKS)
    known = (part < chunks)[:, None] & (c < C)[None, :]
    parts += group * chunks * (2 * C)
    place = parts + (part * (2 * C))[:, None] + c[None, :]
    first = tl.load(parts + c, mask=c < C, other=0.0)
    distance, variance = (
        tl.load(place, mask=known, other=0.0) - first[None, :],
        tl.load(place + C, mask=known, other=0.0),
    )
    share = tl.where(part < chunks, tl.minimum(chunk, rows - part * chunk), 0).to(tl.float32)[:, None] / rows
    mean = tl.sum(distance * share, 0)
    apart = distance - mean[None, :]
    tl.store(moments + group * (2 * C) + c, first + mean, mask=c < C)
    tl.store(moments + group * (2 * C) + C + c, tl.sum((variance + apart * apart) * share, 0), mask=c < C)


@triton.jit(do_not_specialize=["rows", "chunk"])
@no_type_check
def _normalise(
    x, moments, scale, shift, out, rows, chunk, epsilon,
    C: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute the output of one chunk."""
    group, part, c, count = _locate(rows, chunk, C, BLOCK_C)
    mean, inverse, factor, term = _read_affine(moments, scale, shift, group, c, epsilon, C)
    x += (group * rows + part * chunk) * C
    out += (group * rows + part * chunk) * C
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        inside = (row < count)[:, None] & (c < C)[None, :]
        place = (row * C)[:, None] + c[None, :]
        centred = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        result = _transform(centred, inverse, factor, term, RELU)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _normalise_whole(
    x, scale, shift, out, moments, rows, epsilon,
    C: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute moments and output of a group that fits into one program."""
    group, _, c, _ = _locate(rows, rows, C, BLOCK_C)
    x += group * rows * C
    out += group * rows * C
    row = tl.arange(0, BLOCK_R)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    place = (row * C)[:, None] + c[None, :]
    first = tl.load(x + c, mask=c < C, other=0.0).to(tl.float32)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    distance = tl.where(inside, value - first[None, :], 0.0)  # small numbers have small rounding errors
    mean = tl.sum(distance, 0) / rows
    centred = tl.where(inside, distance - mean[None, :], 0.0)
    variance = tl.sum(centred * centred, 0) / rows
    factor = tl.load(scale + group * C + c, mask=c < C, other=0.0)
    term = tl.load(shift + group * C + c, mask=c < C, other=0.0)
    result = _transform(centred, tl.rsqrt(variance + epsilon), factor, term, RELU)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
    tl.store(moments + group * (2 * C) + c, first + mean, mask=c < C)
    tl.store(moments + group * (2 * C) + C + c, variance, mask=c < C)


@triton.jit(do_not_specialize=["rows", "chunk"])
@no_type_check
def _chunk_sums(
    grad, x, moments, scale, shift, sums, rows, chunk, epsilon,
    C: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store Σ g and Σ g normal of each chunk, [group, chunk, 2, C]."""
    group, part, c, count = _locate(rows, chunk, C, BLOCK_C)
    mean, inverse, factor, term = _read_affine(moments, scale, shift, group, c, epsilon, C)
    x += (group * rows + part * chunk) * C
    grad += (group * rows + part * chunk) * C
    total = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    product = tl.full((BLOCK_R, BLOCK_C), 0.0, tl.float32)
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        inside = (row < count)[:, None] & (c < C)[None, :]
        place = (row * C)[:, None] + c[None, :]
        centred = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        g = _read_gradient(grad, centred, inverse, factor, term, place, inside, RELU)
        total += g
        product += g * centred
    out = sums + (group * tl.cdiv(rows, chunk) + part) * (2 * C) + c
    tl.store(out, tl.sum(total, 0), mask=c < C)
    tl.store(out + C, tl.sum(product, 0) * inverse, mask=c < C)


@triton.jit(do_not_specialize=["chunks"])
@no_type_check
def _add_chunks(parts, sums, chunks, C: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Add sums [group, chunk, C] over the chunks."""
    TILES: tl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    group = (tl.program_id(0) // TILES).to(tl.int64)
    c = tl.program_id(0) % TILES * BLOCK_C + tl.arange(0, BLOCK_C)
    part = tl.arange(0, CHUNKS)
    known = (part < chunks)[:, None] & (c < C)[None, :]
    each = tl.load(parts + (group * chunks + part)[:, None] * C + c[None, :], mask=known, other=0.0)
    tl.store(sums + group * C + c, tl.sum(each, 0), mask=c < C)


@triton.jit(do_not_specialize=["rows", "chunk"])
@no_type_check
def _differentiate(
    grad, x, moments, scale, shift, sums, out, rows, chunk, epsilon,
    C: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute dx of one chunk from the sums of its group."""
    group, part, c, count = _locate(rows, chunk, C, BLOCK_C)
    mean, inverse, factor, term = _read_affine(moments, scale, shift, group, c, epsilon, C)
    constant = tl.load(sums + group * (2 * C) + c, mask=c < C, other=0.0) / rows
    slope = tl.load(sums + group * (2 * C) + C + c, mask=c < C, other=0.0) * inverse / rows
    x += (group * rows + part * chunk) * C
    grad += (group * rows + part * chunk) * C
    out += (group * rows + part * chunk) * C
    for start in range(0, count, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        inside = (row < count)[:, None] & (c < C)[None, :]
        place = (row * C)[:, None] + c[None, :]
        centred = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        g = _read_gradient(grad, centred, inverse, factor, term, place, inside, RELU)
        dx = (g - constant[None, :] - centred * slope[None, :]) * (factor * inverse)[None, :]
        tl.store(out + place, dx.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _differentiate_whole(
    grad, x, moments, scale, shift, sums, out, rows, epsilon,
    C: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute sums and dx of a group that fits into one program."""
    group, _, c, _ = _locate(rows, rows, C, BLOCK_C)
    mean, inverse, factor, term = _read_affine(moments, scale, shift, group, c, epsilon, C)
    x += group * rows * C
    grad += group * rows * C
    out += group * rows * C
    row = tl.arange(0, BLOCK_R)
    inside = (row < rows)[:, None] & (c < C)[None, :]
    place = (row * C)[:, None] + c[None, :]
    centred = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
    g = _read_gradient(grad, centred, inverse, factor, term, place, inside, RELU)
    total, product = tl.sum(g, 0), tl.sum(g * centred, 0) * inverse
    dx = (g - (total / rows)[None, :] - centred * (product * inverse / rows)[None, :]) * (factor * inverse)[None, :]
    tl.store(out + place, dx.to(out.dtype.element_ty), mask=inside)
    tl.store(sums + group * (2 * C) + c, total, mask=c < C)
    tl.store(sums + group * (2 * C) + C + c, product, mask=c < C)


def launch_normalise(
    x: Tensor, scale: Tensor, shift: Tensor, out: Tensor, per_image: bool, epsilon: float, relu: bool
) -> Tensor:
    """Write `out` and return mean and variance [group, 2, C]; maps are [member, batch, row, column, channel]."""
    groups = Groups(x.shape, per_image)
    rows, channels, constants = groups.rows, groups.channels, groups.constants
    moments = x.new_empty(groups.count, 2, channels, dtype=torch.float32)
    if groups.whole:
        arguments = (x, scale, shift, out, moments, rows, epsilon)
        launch(_normalise_whole, groups.grid(rows), *arguments, RELU=relu, **constants, writes=(out, moments))
        return moments
    chunk, chunks = groups.chunk, groups.chunks
    parts = moments if chunks == 1 else x.new_empty(groups.count, chunks, 2, channels, dtype=torch.float32)
    launch(_chunk_moments, groups.grid(chunk), x, parts, rows, chunk, **constants, writes=(parts,))
    if chunks > 1:
        grid, sizes = groups.plan_merge(channels)
        launch(_merge_moments, grid, parts, moments, rows, chunk, **sizes, writes=(moments,))
    chunk = groups.result_chunk
    arguments = (x, moments, scale, shift, out, rows, chunk, epsilon)
    launch(_normalise, groups.grid(chunk), *arguments, RELU=relu, **constants, writes=(out,))
    return moments


def launch_backward(
    grad: Tensor, x: Tensor, moments: Tensor, scale: Tensor, shift: Tensor, dx: Tensor, per_image: bool,
    epsilon: float, relu: bool,
) -> Tensor:  # fmt: skip
    """Write `dx` and return the sums [group, 2, C]: the gradients of shift and scale."""
    groups = Groups(x.shape, per_image)
    rows, channels, constants = groups.rows, groups.channels, {"RELU": relu, **groups.constants}
    sums = torch.empty_like(moments)
    inputs = (grad, x, moments, scale, shift)
    if groups.whole:
        arguments = (*inputs, sums, dx, rows, epsilon)
        launch(_differentiate_whole, groups.grid(rows), *arguments, **constants, writes=(dx, sums))
        return sums
    chunk, chunks = groups.chunk, groups.chunks
    parts = sums if chunks == 1 else x.new_empty(groups.count, chunks, 2, channels, dtype=torch.float32)
    launch(_chunk_sums, groups.grid(chunk), *inputs, parts, rows, chunk, epsilon, **constants, writes=(parts,))
    if chunks > 1:
        grid, sizes = groups.plan_merge(2 * channels)
        launch(_add_chunks, grid, parts, sums, chunks, **sizes, writes=(sums,))
    chunk = groups.result_chunk
    arguments = (*inputs, sums, dx, rows, chunk, epsilon)
    launch(_differentiate, groups.grid(chunk), *arguments, **constants, writes=(dx,))
    return sums
