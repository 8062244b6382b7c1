r"""Triton kernels for log densities of mixtures of Normal posteriors (see `unbraid.density.fused`).

For samples z_i and posteriors j of each member, for every group of leaves and every leaf alone,

    log q(z_i) = logsumexp_j [ sum_d log N(z_id; mean_jd, variance_jd) + log w_ij ].

All kernels work in logarithms to base 2, in which the sum over a group is x_ij = c_j - sum_d t_ijd^2 + log2 w_ij with
t = (z - mean) k / sigma, k^2 = log2(e) / 2. The difference is taken before anything is squared: an expansion into
matrix products would cancel where posteriors are narrow. The backward pass recomputes the responsibilities
r_ij = 2^(x_ij - log2 q(z_i)). One axis of a tile lies along a warp's threads, the other, streamed one inside each
thread, so that sums over it need no exchange; no two programs write to the same place.
"""

import math
from typing import no_type_check

import triton
import triton.language as tl

_LOG2E = tl.constexpr(math.log2(math.e))
_LN2 = tl.constexpr(math.log(2))
_LOG_2PI = tl.constexpr(math.log(2 * math.pi))
_ROOT = tl.constexpr(math.sqrt(math.log2(math.e) / 2))
_STEEPEST = tl.constexpr(80.0)  # the bound on -log sigma that the Normal block sets, too
_CLAMPED = tl.constexpr(0.999 * math.exp(80) * math.sqrt(math.log2(math.e) / 2))  # k/sigma at that bound, or nearly
_LOWEST = tl.constexpr(-1e38)  # below every logarithm, yet finite: the difference of two infinities is no number


@triton.jit
@no_type_check
def pack(
    sample, parameters, log_p, rows, components, normaliser, rows_count, count, rows_padded, padded,
    s_member, s_row, s_leaf, p_member, p_row, p_leaf, log_weight,
    MASK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, HAS_LOG_P: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Transpose samples to rows [M, D, i], and posteriors to components [M, 3 D + groups, j].

    Those are each leaf's mean, each leaf's k/sigma, and c + log2 w of each group and each leaf. The normalisers
    [M, groups + D, i] of rows that only pad the others become infinite: divided by them, nothing remains.
    """
    m = tl.program_id(1).to(tl.int64)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    leaf = tl.arange(0, WIDTH)[None, :]
    at, real = n[:, None], leaf < D
    z = tl.load(sample + m * s_member + at * s_row + leaf * s_leaf, mask=real & (at < rows_count), other=0.0)
    tl.store(rows + (m * D + leaf) * rows_padded + at, z, mask=real & (at < rows_padded))
    normaliser += m * (GROUPS + D) * rows_padded + n[:, None]
    beyond = (at >= rows_count) & (at < rows_padded)
    tl.store(normaliser + (GROUPS + leaf) * rows_padded, float("inf"), mask=real & beyond)
    source = parameters + m * p_member + at * p_row + leaf * p_leaf
    mean = tl.load(source, mask=real & (at < count), other=0.0)
    log_variance = tl.load(source + D * p_leaf, mask=real & (at < count), other=0.0)
    target, fits = components + (m * (3 * D + GROUPS) + leaf) * padded + at, real & (at < padded)
    tl.store(target, mean, mask=fits)
    scale = tl.exp2(tl.minimum(-0.5 * log_variance, _STEEPEST) * _LOG2E) * _ROOT
    tl.store(target + D * padded, scale, mask=fits)
    if HAS_LOG_P:
        log_weight += tl.load(log_p + n, mask=n < count, other=0.0)
    weight = tl.where(n < count, log_weight * _LOG2E, float("-inf"))
    constant = -0.5 * _LOG2E * (log_variance + _LOG_2PI)
    tl.store(target + (2 * D + GROUPS) * padded, constant + weight[:, None], mask=fits)
    components += (m * (3 * D + GROUPS) + 2 * D) * padded
    for g in tl.static_range(GROUPS):
        mask = tl.full((), MASK[g], tl.int64)
        members = tl.where(((mask >> leaf.to(tl.int64)) & 1) != 0, constant, 0.0)
        tl.store(components + g * padded + n, tl.sum(members, 1) + weight, mask=n < padded)
        tl.store(normaliser + g * rows_padded, float("inf"), mask=beyond)


@triton.jit
@no_type_check
def pad(grad, packed, rows_count, rows_padded, m_stride, g_stride, i_stride, BLOCK: tl.constexpr):
    """Copy gradients [M, g, i] of any layout to [M, g, padded i]."""
    g, m = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(grad + m * m_stride + g * g_stride + i * i_stride, mask=i < rows_count, other=0.0)
    tl.store(packed + (m * tl.num_programs(1) + g) * rows_padded + i, value, mask=i < rows_padded)


@triton.jit
@no_type_check
def _entry(TABLE: tl.constexpr, COUNT: tl.constexpr, index):
    """TABLE[index] of a table that is part of the program: no copy to the device that a captured graph would refuse."""
    value = tl.full((), TABLE[0], tl.int64)
    for k in tl.static_range(1, COUNT):
        value = tl.where(index == k, TABLE[k], value)
    return value


@triton.jit
@no_type_check
def _reweigh(x, i, j, i0, j0, batch, own, after, I: tl.constexpr, J: tl.constexpr):  # noqa: E741
    """Add what the weights of j = i and j = i + 1 (mod batch) have over the others'; most tiles hold neither."""
    if ((j0 <= i0 + I) & (i0 < j0 + J)) | ((j0 == 0) & (i0 + I >= batch)):
        following = (j == i + 1) | ((j == 0) & (i == batch - 1))
        x += tl.where(j == i, own, 0.0) + tl.where(following, after, 0.0)
    return x


@triton.jit
@no_type_check
def _log_terms(
    rows, components, i, j, rows_padded, padded, g, first, last, mask, D: tl.constexpr, STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x [STREAM, BLOCK] of one group; of i and j, the streamed one comes as [STREAM, 1], the other as [1, BLOCK]."""
    squares = tl.full((STREAM, BLOCK), 0.0, tl.float32)
    for leaf in range(first, last):
        if ((mask >> leaf) & 1) != 0:
            component = components + leaf * padded + j
            t = (tl.load(rows + leaf * rows_padded + i) - tl.load(component)) * tl.load(component + D * padded)
            squares += t * t
    return tl.load(components + (2 * D + g) * padded + j) - squares


@triton.jit
@no_type_check
def _finish(out, normaliser, highest, total, i, at, rows_count, rows_padded):
    """Write the natural logarithm, and for the backward pass the binary one, infinite where the density is zero."""
    binary = highest + tl.log2(total)
    tl.store(out + at * rows_count + i, binary * _LN2, mask=i < rows_count)
    divisor = tl.where(binary == float("-inf"), float("inf"), binary)
    tl.store(normaliser + at * rows_padded + i, divisor, mask=i < rows_count)


@triton.jit
@no_type_check
def forward(
    rows, components, out, normaliser, partial, rows_count, count, rows_padded, padded, chunk, own, after,
    FIRST: tl.constexpr, LAST: tl.constexpr, MASK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
    UNEQUAL: tl.constexpr, SPLIT: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Running maximum and sum over a chunk of components, for a block of rows and one group (the leaves come last)."""
    blocks = (rows_count + BLOCK - 1) // BLOCK
    block, split = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    g, m = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first = tl.where(g < GROUPS, _entry(FIRST, GROUPS, g), g - GROUPS)
    last = tl.where(g < GROUPS, _entry(LAST, GROUPS, g), g - GROUPS + 1)
    mask = tl.where(g < GROUPS, _entry(MASK, GROUPS, g), -1)
    rows += m * D * rows_padded
    components += m * (3 * D + GROUPS) * padded
    i = block * BLOCK + tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for j0 in range(split * chunk, tl.minimum(split * chunk + chunk, count), STREAM):
        j = j0 + tl.arange(0, STREAM)[:, None]
        x = _log_terms(rows, components, i[None, :], j, rows_padded, padded, g, first, last, mask, D, STREAM, BLOCK)
        if UNEQUAL:
            x = _reweigh(x, i[None, :], j, block * BLOCK, j0, rows_count, own, after, BLOCK, STREAM)
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(x - higher[None, :]), 0)
        highest = higher
    at = m * tl.num_programs(1) + g
    if SPLIT:
        size = tl.num_programs(2).to(tl.int64) * tl.num_programs(1) * rows_padded
        tl.store(partial + 2 * split * size + at * rows_padded + i, highest)
        tl.store(partial + (2 * split + 1) * size + at * rows_padded + i, total)
    else:
        _finish(out, normaliser, highest, total, i, at, rows_count, rows_padded)


@triton.jit
@no_type_check
def combine(partial, out, normaliser, rows_count, rows_padded, splits, BLOCK: tl.constexpr):
    """Join the running maxima and sums of all chunks."""
    at = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = tl.num_programs(0).to(tl.int64) * rows_padded
    partial += at * rows_padded
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for _ in range(splits):
        peak = tl.load(partial + i, mask=i < rows_count, other=0.0)
        part = tl.load(partial + size + i, mask=i < rows_count, other=0.0)
        higher = tl.maximum(highest, peak)
        total = total * tl.exp2(highest - higher) + part * tl.exp2(peak - higher)
        highest = higher
        partial += 2 * size
    _finish(out, normaliser, highest, total, i, at, rows_count, rows_padded)


@triton.jit
@no_type_check
def backward(
    grad, normaliser, rows, components, partial, rows_count, count, rows_padded, padded, chunk, own, after,
    FIRST: tl.constexpr, LAST: tl.constexpr, MASK: tl.constexpr, SLOT: tl.constexpr, SLOTS: tl.constexpr,
    GROUPS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, UNEQUAL: tl.constexpr, OF_ROWS: tl.constexpr,
    STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of rows, streaming components, or of a block of components, streaming rows.

    With v_ij = sum over outputs of gradient times responsibility they are

        d z_id = -sum_j v_ij t k/sigma / k^2,   d mean_jd = sum_i v_ij t k/sigma / k^2,
        d log variance_jd = sum_i v_ij (t^2 / (2 k^2) - 1/2).

    Group 0 holds all leaves and takes each leaf's own density along, since both need the same t.
    """
    fixed_count = rows_count if OF_ROWS else count
    moving_count = count if OF_ROWS else rows_count
    I: tl.constexpr = BLOCK if OF_ROWS else STREAM  # noqa: E741
    J: tl.constexpr = STREAM if OF_ROWS else BLOCK
    blocks = (fixed_count + BLOCK - 1) // BLOCK
    block, split = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    g, m = tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, last, mask = _entry(FIRST, GROUPS, g), _entry(LAST, GROUPS, g), _entry(MASK, GROUPS, g)
    rows += m * D * rows_padded
    components += m * (3 * D + GROUPS) * padded
    grad += m * (GROUPS + D) * rows_padded
    normaliser += m * (GROUPS + D) * rows_padded
    fixed = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    leaves = tl.arange(0, WIDTH)[:, None]
    slopes = tl.full((WIDTH, BLOCK), 0.0, tl.float32)
    spreads = tl.full((WIDTH, BLOCK), 0.0, tl.float32)
    for start in range(split * chunk, tl.minimum(split * chunk + chunk, moving_count), STREAM):
        moving = start + tl.arange(0, STREAM)[:, None]
        if OF_ROWS:
            i, j, i0, j0 = fixed, moving, block * BLOCK, start
        else:
            i, j, i0, j0 = moving, fixed, start, block * BLOCK
        x = _log_terms(rows, components, i, j, rows_padded, padded, g, first, last, mask, D, STREAM, BLOCK)
        if UNEQUAL:
            x = _reweigh(x, i, j, i0, j0, rows_count, own, after, I, J)
        shared = tl.load(grad + g * rows_padded + i) * tl.exp2(x - tl.load(normaliser + g * rows_padded + i))
        for leaf in range(first, last):
            if ((mask >> leaf) & 1) != 0:
                component = components + leaf * padded + j
                scale = tl.load(component + D * padded)
                t = (tl.load(rows + leaf * rows_padded + i) - tl.load(component)) * scale
                v = shared
                if g == 0:
                    x = tl.load(component + (2 * D + GROUPS) * padded) - t * t
                    if UNEQUAL:
                        x = _reweigh(x, i, j, i0, j0, rows_count, own, after, I, J)
                    at = (GROUPS + leaf) * rows_padded + i
                    v += tl.load(grad + at) * tl.exp2(x - tl.load(normaliser + at))
                vt = v * t  # before the scale: 0 times a finite number, where t^2 alone would be infinite
                if OF_ROWS:
                    slopes += tl.where(leaves == leaf, tl.sum(vt * scale, 0)[None, :], 0.0)
                else:
                    curved = tl.where(scale < _CLAMPED, _LN2 * tl.sum(vt * t, 0)[None, :], 0.0)
                    slopes += tl.where(leaves == leaf, scale * tl.sum(vt, 0)[None, :], 0.0)
                    spreads += tl.where(leaves == leaf, curved - 0.5 * tl.sum(v, 0)[None, :], 0.0)
    mine = ((mask >> leaves) & 1) != 0
    part = (split * SLOTS + _entry(SLOT, GROUPS, g)) * tl.num_programs(2) + m
    if OF_ROWS:
        tl.store(partial + (part * D + leaves) * rows_padded + fixed, slopes * (-2 * _LN2), mask=mine)
    else:
        at = partial + (part * 2 * D + leaves) * padded + fixed
        tl.store(at, slopes * (2 * _LN2), mask=mine)
        tl.store(at + D * padded, spreads, mask=mine)
