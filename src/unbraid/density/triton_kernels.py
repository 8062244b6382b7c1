r"""Triton kernels for log densities of mixtures of Normal posteriors (see `unbraid.density.fused_estimator`).

For samples z_i and posteriors j of each member, for every group of leaves and every single leaf,

    log q(z_i) = logsumexp_j [ sum_d log N(z_id; mean_jd, variance_jd) + log w_ij ].

All kernels work in logarithms to base 2, in which the sum over a group is x_ij = c_j - sum_d t_ijd^2 + log2 w_ij with
t = (z - mean) k / sigma, k^2 = log2(e) / 2. The difference is taken before anything is squared: an expansion into
matrix products would cancel where posteriors are narrow. The backward pass recomputes the responsibilities
r_ij = 2^(x_ij - log2 q(z_i)), and only for the components: the scores d log q / d z are means over components, which
the forward pass computes, too.

A program is one warp. Each thread holds a few rows (or components) and streams the others: sums need no exchange, and
one load serves all that the thread holds. These kernels wait for loads more than for arithmetic. The streamed axis is
cut into chunks; small kernels join their sums in the same order in every run. Groups and single leaves are different
programs of one launch, which fill the GPU together.
"""

import math
from typing import no_type_check

import triton
import triton.language as tl

_LOG2E = tl.constexpr(math.log2(math.e))
_LN2 = tl.constexpr(math.log(2))
_K = tl.constexpr(math.sqrt(math.log2(math.e) / 2))
_CLAMPED = tl.constexpr(0.999 * math.exp(80) * math.sqrt(math.log2(math.e) / 2))  # k/sigma at that bound, or nearly
_LOWEST = tl.constexpr(-1e38)  # below every logarithm, yet finite: the difference of two infinities is no number


@triton.jit
@no_type_check
def _reweigh(x, i, j, i0, j0, batch, own, after, I: tl.constexpr, J: tl.constexpr):  # noqa: E741
    """Add the excess weights of j = i and j = i + 1 (mod batch) over the others'; most tiles hold neither."""
    if ((j0 <= i0 + I) & (i0 < j0 + J)) | ((j0 == 0) & (i0 + I >= batch)):
        following = (j == i + 1) | ((j == 0) & (i == batch - 1))
        x += tl.where(j == i, own, 0.0) + tl.where(following, after, 0.0)
    return x


@triton.jit
@no_type_check
def _load_leaves(source, at, stride, AXIS: tl.constexpr, LEAVES: tl.constexpr, COUNT: tl.constexpr):
    """Load a group's leaves at some places, as a tuple, so that each has its own registers.

    Held values get a first axis, streamed ones a second; only after loading, or loads stay scalar.
    """
    values = (tl.expand_dims(tl.load(source + LEAVES[0] * stride + at), AXIS),)
    for n in tl.static_range(1, COUNT):
        values += (tl.expand_dims(tl.load(source + LEAVES[n] * stride + at), AXIS),)
    return values


@triton.jit
@no_type_check
def _zeros(BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """Return zeros for each leaf, as a tuple."""
    values = (tl.full((BLOCK,), 0.0, tl.float32),)
    for _ in tl.static_range(1, COUNT):
        values += (tl.full((BLOCK,), 0.0, tl.float32),)
    return values


@triton.jit
@no_type_check
def _standardise(z, mean, scale, COUNT: tl.constexpr):
    """Return t of each leaf and the sum of their squares; one operand is [STREAM, 1], the other [1, BLOCK]."""
    standard = ((z[0] - mean[0]) * scale[0],)
    squares = standard[0] * standard[0]
    for n in tl.static_range(1, COUNT):
        standard += ((z[n] - mean[n]) * scale[n],)
        squares += standard[n] * standard[n]
    return standard, squares


@triton.jit
@no_type_check
def _sum_other_squares(
    rows, means, scales, i, j, rows_padded, padded, HELD: tl.constexpr, OTHERS: tl.constexpr, D: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Sum the squares of a wide group's leaves whose gradients belong to other programs; too many to unroll."""
    squares = tl.full(SHAPE, 0.0, tl.float32)
    for leaf in range(D):
        if ((tl.full((), OTHERS, tl.int64) >> leaf) & 1) != 0:
            z = tl.expand_dims(tl.load(rows + leaf * rows_padded + i), HELD)
            mean = tl.expand_dims(tl.load(means + leaf * padded + j), 1 - HELD)
            t = (z - mean) * tl.expand_dims(tl.load(scales + leaf * padded + j), 1 - HELD)
            squares += t * t
    return squares


@triton.jit
@no_type_check
def _forward(
    rows, means, scales, constants, partial, i0, start, stop, rows_count, rows_padded, padded, own, after,
    LEAVES: tl.constexpr, COUNT: tl.constexpr, OTHERS: tl.constexpr, D: tl.constexpr, UNEQUAL: tl.constexpr,
    SCORES: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute maximum, sum, and sums for each leaf's score, of a block of rows over some components."""
    i = i0 + tl.arange(0, BLOCK)
    z = _load_leaves(rows, i, rows_padded, 0, LEAVES, COUNT)
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    scores = _zeros(BLOCK, COUNT)
    for j0 in range(start, stop, STREAM):
        j = j0 + tl.arange(0, STREAM)
        scale = _load_leaves(scales, j, padded, 1, LEAVES, COUNT)
        t, squares = _standardise(z, _load_leaves(means, j, padded, 1, LEAVES, COUNT), scale, COUNT)
        if OTHERS:
            squares += _sum_other_squares(rows, means, scales, i, j, rows_padded, padded, 0, OTHERS, D, (STREAM, BLOCK))
        x = tl.load(constants + j)[:, None] - squares
        if UNEQUAL:
            x = _reweigh(x, i[None, :], j[:, None], i0, j0, rows_count, own, after, BLOCK, STREAM)
        higher = tl.maximum(highest, tl.max(x, 0))
        weight, shrink = tl.exp2(x - higher[None, :]), tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weight, 0)
        highest = higher
        if SCORES:
            updated = ()
            for n in tl.static_range(COUNT):  # first t, then the scale: their product may be infinite
                updated += (scores[n] * shrink + tl.sum(weight * t[n] * scale[n], 0),)
            scores = updated
    tl.store(partial + i, highest)
    tl.store(partial + rows_padded + i, total)
    if SCORES:
        for n in tl.static_range(COUNT):
            tl.store(partial + (2 + LEAVES[n]) * rows_padded + i, scores[n])


@triton.jit
@no_type_check
def _assign(program, of_groups, of_leaves):
    """Return whether a program is a group's, and its number; they alternate, as single leaves need other units."""
    turns = 2 * tl.minimum(of_groups, of_leaves)
    of_group = tl.where(program < turns, program % 2 == 0, of_groups > of_leaves)
    return of_group, tl.where(program < turns, program // 2, program - turns // 2)


@triton.jit(do_not_specialize=["rows_count", "count", "group_splits", "leaf_splits", "group"])
@no_type_check
def forward(
    rows, components, grouped, single, rows_count, count, rows_padded, padded, group_chunk, group_splits, leaf_chunk,
    leaf_splits, own, after, group,
    LEAVES: tl.constexpr, COUNT: tl.constexpr, OTHERS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
    UNEQUAL: tl.constexpr, SCORES: tl.constexpr, GROUP_STREAM: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    LEAF_STREAM: tl.constexpr, LEAF_BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute sums of one group [chunks, M, groups, 2 + D, i] and of each leaf [chunks, M, D, 3, i]: see `_forward`.

    A group's scores are those of LEAVES; OTHERS is the mask of its other leaves.
    """
    m, members = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    rows += m * D * rows_padded
    components += m * (3 * D + GROUPS) * padded
    blocks = (rows_count + GROUP_BLOCK - 1) // GROUP_BLOCK
    leaf_blocks = (rows_count + LEAF_BLOCK - 1) // LEAF_BLOCK
    of_group, program = _assign(tl.program_id(0), blocks * group_splits, leaf_blocks * leaf_splits * D)
    if of_group:
        split, start = program // blocks, program // blocks * group_chunk
        _forward(
            rows, components, components + D * padded, components + (2 * D + group) * padded,
            grouped + ((split * members + m) * GROUPS + group) * (2 + D) * rows_padded,
            program % blocks * GROUP_BLOCK, start, tl.minimum(start + group_chunk, count), rows_count, rows_padded,
            padded, own, after, LEAVES, COUNT, OTHERS, D, UNEQUAL, SCORES, GROUP_STREAM, GROUP_BLOCK,
        )  # fmt: skip
    else:
        leaf, split = program // leaf_blocks % D, program // leaf_blocks // D
        component, start = components + leaf * padded, split * leaf_chunk
        _forward(
            rows + leaf * rows_padded, component, component + D * padded, component + (2 * D + GROUPS) * padded,
            single + ((split * members + m) * D + leaf) * 3 * rows_padded,
            program % leaf_blocks * LEAF_BLOCK, start, tl.minimum(start + leaf_chunk, count), rows_count, rows_padded,
            padded, own, after, (0,), 1, 0, 1, UNEQUAL, SCORES, LEAF_STREAM, LEAF_BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows_count", "group_splits", "leaf_splits"])
@no_type_check
def combine(
    grouped, single, out, normaliser, scores, rows_count, rows_padded, group_splits, leaf_splits,
    GROUPS: tl.constexpr, D: tl.constexpr, SCORES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Join the chunks: log densities [M, groups + D, i], their binary logarithms for the backward pass, and scores.

    A program does one leaf of one group, or one single leaf, which come last; scores are [M, (groups + 1) D, i].
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which, m, members = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    of_group = which < GROUPS * D
    leaf = which % D
    output = tl.where(of_group, which // D, GROUPS + leaf)
    splits = tl.where(of_group, group_splits, leaf_splits)
    if of_group:
        partial, stride = grouped + (m * GROUPS + output) * (2 + D) * rows_padded, members * GROUPS * (2 + D)
    else:
        partial, stride = single + (m * D + leaf) * 3 * rows_padded, members * D * 3
    score_row = tl.where(of_group, 2 + leaf, 2)
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    score = tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, splits, TILE):
        split = first + tl.arange(0, TILE)[:, None]
        at = partial + split.to(tl.int64) * stride * rows_padded + i[None, :]
        peak = tl.load(at, mask=split < splits, other=_LOWEST)
        higher = tl.maximum(highest, tl.max(peak, 0))
        shrink, weight = tl.exp2(highest - higher), tl.exp2(peak - higher[None, :])
        total = total * shrink + tl.sum(weight * tl.load(at + rows_padded, mask=split < splits, other=0.0), 0)
        if SCORES:
            part = tl.load(at + score_row * rows_padded, mask=split < splits, other=0.0)
            score = score * shrink + tl.sum(weight * part, 0)
        highest = higher
    if (which >= GROUPS * D) | (leaf == 0):
        binary, at = highest + tl.log2(total), m * (GROUPS + D) + output
        tl.store(out + at * rows_count + i, binary * _LN2, mask=i < rows_count)
        divisor = tl.where(binary == float("-inf"), float("inf"), binary)  # no gradient
        tl.store(normaliser + at * rows_padded + i, divisor, mask=i < rows_count)
    if SCORES:
        score *= tl.where(total == 0.0, 0.0, 1 / total) * (-2 * _LN2)
        tl.store(scores + (m * (GROUPS + 1) * D + which) * rows_count + i, score, mask=i < rows_count)


@triton.jit(do_not_specialize=["rows_count"])
@no_type_check
def backward_rows(
    grad, scores, padded_grad, of_sample, rows_count, rows_padded, m_stride, g_stride, i_stride,
    MASK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of samples [M, i, D], one leaf per program; copy `grad` of any layout to [M, groups + D, i]."""
    leaf, m = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad += m * m_stride + i * i_stride
    padded_grad += m * (GROUPS + D) * rows_padded + i
    scores += (m * (GROUPS + 1) * D + leaf) * rows_count + i
    mine = tl.load(grad + (GROUPS + leaf) * g_stride, mask=i < rows_count, other=0.0)
    tl.store(padded_grad + (GROUPS + leaf) * rows_padded, mine, mask=i < rows_padded)
    slope = mine * tl.load(scores + GROUPS * D * rows_count, mask=i < rows_count, other=0.0)
    for g in tl.static_range(GROUPS):
        shared = tl.load(grad + g * g_stride, mask=i < rows_count, other=0.0)
        if leaf == 0:
            tl.store(padded_grad + g * rows_padded, shared, mask=i < rows_padded)
        if ((tl.full((), MASK[g], tl.int64) >> leaf) & 1) != 0:
            slope += shared * tl.load(scores + g * D * rows_count, mask=i < rows_count, other=0.0)
    tl.store(of_sample + (m * rows_count + i) * D + leaf, slope, mask=i < rows_count)


@triton.jit
@no_type_check
def _backward(
    rows, means, scales, constants, grad, normaliser, partial, j0, start, stop, rows_count, rows_padded, padded, own,
    after, spread_row,
    LEAVES: tl.constexpr, COUNT: tl.constexpr, OTHERS: tl.constexpr, D: tl.constexpr, UNEQUAL: tl.constexpr,
    STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of a block of components from some rows, for a group's density or a leaf's."""
    j = j0 + tl.arange(0, BLOCK)
    mean = _load_leaves(means, j, padded, 0, LEAVES, COUNT)
    scale = _load_leaves(scales, j, padded, 0, LEAVES, COUNT)
    constant = tl.load(constants + j)[None, :]
    slopes, curves, weight = _zeros(BLOCK, COUNT), _zeros(BLOCK, COUNT), tl.full((BLOCK,), 0.0, tl.float32)
    for i0 in range(start, stop, STREAM):
        i = i0 + tl.arange(0, STREAM)
        t, squares = _standardise(_load_leaves(rows, i, rows_padded, 1, LEAVES, COUNT), mean, scale, COUNT)
        if OTHERS:
            squares += _sum_other_squares(rows, means, scales, i, j, rows_padded, padded, 1, OTHERS, D, (STREAM, BLOCK))
        x = constant - squares
        if UNEQUAL:
            x = _reweigh(x, i[:, None], j[None, :], i0, j0, rows_count, own, after, STREAM, BLOCK)
        v = tl.load(grad + i)[:, None] * tl.exp2(x - tl.load(normaliser + i)[:, None])
        weight += tl.sum(v, 0)
        steeper, rounder = (), ()
        for n in tl.static_range(COUNT):
            vt = v * t[n]  # 0 times a finite number, where t^2 by itself would be infinite
            steeper += (slopes[n] + tl.sum(vt, 0),)
            rounder += (curves[n] + tl.sum(vt * t[n], 0),)
        slopes, curves = steeper, rounder
    for n in tl.static_range(COUNT):
        steepness = tl.load(scales + LEAVES[n] * padded + j)
        at = partial + LEAVES[n] * padded + j
        tl.store(at, steepness * slopes[n] * (2 * _LN2))
        tl.store(at + spread_row * padded, tl.where(steepness < _CLAMPED, curves[n] * _LN2, 0.0) - 0.5 * weight)


@triton.jit(do_not_specialize=["rows_count", "count", "group_splits", "leaf_splits", "group"])
@no_type_check
def backward(
    grad, normaliser, rows, components, partial, rows_count, count, rows_padded, padded, group_chunk, group_splits,
    leaf_chunk, leaf_splits, own, after, group,
    LEAVES: tl.constexpr, COUNT: tl.constexpr, OTHERS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
    UNEQUAL: tl.constexpr, GROUP_STREAM: tl.constexpr, GROUP_BLOCK: tl.constexpr, LEAF_STREAM: tl.constexpr,
    LEAF_BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of components [chunks of all groups, then of leaves; M, 2 D, j].

    With v_ij = gradient times responsibility, each output adds to those of its leaves

        d mean_jd = sum_i v_ij t k/sigma / k^2,   d log variance_jd = sum_i v_ij (t^2 / (2 k^2) - 1/2).
    """
    m, members = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    rows += m * D * rows_padded
    components += m * (3 * D + GROUPS) * padded
    grad += m * (GROUPS + D) * rows_padded
    normaliser += m * (GROUPS + D) * rows_padded
    blocks = (count + GROUP_BLOCK - 1) // GROUP_BLOCK
    leaf_blocks = (count + LEAF_BLOCK - 1) // LEAF_BLOCK
    of_group, program = _assign(tl.program_id(0), blocks * group_splits, leaf_blocks * leaf_splits * D)
    if of_group:
        split, start = program // blocks, program // blocks * group_chunk
        _backward(
            rows, components, components + D * padded, components + (2 * D + group) * padded,
            grad + group * rows_padded, normaliser + group * rows_padded,
            partial + ((group * group_splits + split) * members + m) * 2 * D * padded,
            program % blocks * GROUP_BLOCK, start, tl.minimum(start + group_chunk, rows_count), rows_count,
            rows_padded, padded, own, after, D, LEAVES, COUNT, OTHERS, D, UNEQUAL, GROUP_STREAM, GROUP_BLOCK,
        )  # fmt: skip
    else:
        leaf, split = program // leaf_blocks % D, program // leaf_blocks // D
        component, start, output = components + leaf * padded, split * leaf_chunk, (GROUPS + leaf) * rows_padded
        _backward(
            rows + leaf * rows_padded, component, component + D * padded, component + (2 * D + GROUPS) * padded,
            grad + output, normaliser + output,
            partial + (((GROUPS * group_splits + split) * members + m) * 2 * D + leaf) * padded,
            program % leaf_blocks * LEAF_BLOCK, start, tl.minimum(start + leaf_chunk, rows_count), rows_count,
            rows_padded, padded, own, after, D, (0,), 1, 0, 1, UNEQUAL, LEAF_STREAM, LEAF_BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "parts"])
@no_type_check
def collect(
    partial, of_parameters, count, padded, parts, WIDTH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add up the parts [parts, M, 2 D, j] of the components' gradients [M, j, 2 D]."""
    column, m, members = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, parts, TILE):
        part = first + tl.arange(0, TILE)[:, None]
        at = partial + ((part * members + m) * WIDTH + column) * padded + j[None, :]
        total += tl.sum(tl.load(at, mask=part < parts, other=0.0), 0)
    tl.store(of_parameters + (m * count + j) * WIDTH + column, total, mask=j < count)
