r"""Triton kernels for a group of all leaves and its single leaves, which share what they compute of each pair.

`unbraid.density.triton_kernels` has the general form; its first lines explain the notation. Here one program computes
the group's and all single leaves' densities. For a sample i, a component j and a leaf, with p = k^2 / sigma^2,

    u = z - mean,   q = u p,   t^2 = u q,

serve both: 2^(c - u q) is the leaf's term, the sum of all u q is the group's exponent, and q is the derivative that
scores and gradients weigh. So a pair takes eight instructions for each leaf, in either pass, and one 2^x.

There is no running maximum. A leaf's terms are added as they are, and the group's relative to the term of j = i, which
a sample of that posterior hardly ever falls far short of: a density 2^n times higher has probability 2^-n. What float32
cannot hold this way, such as p of sigma < 2^-63 or > 2^59 or a density beyond 2^64, is found afterwards, by a sum that
is out of range or NaN, and computed again by the general form's formulas.

These kernels take seconds to compile, which only long runs save (`prefers_shared`).
"""

from typing import no_type_check

import triton
import triton.language as tl

from unbraid.density.careful_kernels import add_components_carefully, add_rows_carefully
from unbraid.density.triton_kernels import _LN2, _zeros

_HALF = tl.constexpr(0.5 / 0.6931471805599453)  # t^2 at which the derivative by the log variance is 0
_WIDEST = tl.constexpr(64.0)  # the largest |log2| of a sum that needs no other reference


@triton.jit
@no_type_check
def _is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
@no_type_check
def _is_held(relative, binary):
    """Return whether float32 can hold a sum that is 2^relative in its units, or no gradient needs it.

    The normaliser `binary` is infinite where a density is 0.
    """
    return (tl.abs(relative) <= _WIDEST) | (binary == float("inf"))


@triton.jit
@no_type_check
def _split(values, COUNT: tl.constexpr):
    """Return the numbers of a vector, in order, each as [1]: one load serves all, and each sum is one instruction."""
    if COUNT == 1:
        parts = (values,)
    elif COUNT == 2:
        parts = tl.split(tl.reshape(values, (1, 2)))
    else:
        even, odd = tl.split(tl.reshape(values, (COUNT // 2, 2)))
        first, second = _split(even, COUNT // 2), _split(odd, COUNT // 2)
        parts = (first[0], second[0])
        for n in tl.static_range(1, COUNT // 2):
            parts += (first[n], second[n])
    return parts


@triton.jit
@no_type_check
def _load_parts(tile, FIRST: tl.constexpr, LAST: tl.constexpr, COUNT: tl.constexpr):
    """Load rows [FIRST, LAST) of a tile [rows, COUNT] of a table, as a tuple of `_split` vectors."""
    parts = (_split(tl.load(tile + FIRST * COUNT + tl.arange(0, COUNT)), COUNT),)
    for n in tl.static_range(FIRST + 1, LAST):
        parts += (_split(tl.load(tile + n * COUNT + tl.arange(0, COUNT)), COUNT),)
    return parts


@triton.jit
@no_type_check
def _load_held(source, at, stride, LEAVES: tl.constexpr):
    """Load each leaf's row of a table at some places, as a tuple."""
    values = (tl.load(source + at),)
    for n in tl.static_range(1, LEAVES):
        values += (tl.load(source + n * stride + at),)
    return values


@triton.jit
@no_type_check
def _find_excess(i, j, batch, own, after):
    """Return the excess weight of j = i, or of j = i + 1 (mod batch), over the others'."""
    following = (j == i + 1) | ((j == 0) & (i == batch - 1))
    return tl.where(j == i, own, 0.0) + tl.where(following, after, 0.0)


@triton.jit
@no_type_check
def _hold_neighbours(i0, i1, j0, j1, batch):
    """Return whether j = i or j = i + 1 (mod batch) for some i in [i0, i1) and j in [j0, j1)."""
    return ((j0 <= i1) & (i0 < j1)) | ((j0 == 0) & (i1 >= batch))


@triton.jit
@no_type_check
def _add_components(
    rows, table, normaliser, partial, i0, start, stop, rows_count, rows_padded, own, after,
    D: tl.constexpr, REWEIGH: tl.constexpr, SCORES: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up terms, and terms times q, of a block of rows over some components, for each leaf and for the group."""
    i = i0 + tl.arange(0, BLOCK)
    z = _load_held(rows, i, rows_padded, D)
    relative = tl.load(normaliser + (1 + D) * rows_padded + i)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    totals, scores, shared = _zeros(BLOCK, D), _zeros(BLOCK, D), _zeros(BLOCK, D)
    for j0 in range(start, stop, STREAM):
        tile = table + j0 * (3 * D + 1)
        mean, precision = _load_parts(tile, 0, D, STREAM), _load_parts(tile, D, 2 * D, STREAM)
        constants = _load_parts(tile, 2 * D, 3 * D + 1, STREAM)
        for s in tl.static_range(STREAM):
            x, q = constants[D][s] - relative, ()
            if REWEIGH:
                excess = _find_excess(i, j0 + s, rows_count, own, after)
                x += excess
            sums, sloped = (), ()
            for n in tl.static_range(D):
                u = z[n] - mean[n][s]
                q += (u * precision[n][s],)
                x -= u * q[n]
                exponent = constants[n][s] - u * q[n]
                if REWEIGH:
                    exponent += excess
                term = tl.exp2(exponent)
                sums += (totals[n] + term,)
                sloped += (scores[n] + term * q[n],)
            term = tl.exp2(x)
            total += term
            totals = sums
            if SCORES:
                scores, joint = sloped, ()
                for n in tl.static_range(D):
                    joint += (shared[n] + term * q[n],)
                shared = joint
    tl.store(partial + i, total)
    for n in tl.static_range(D):
        tl.store(partial + (1 + n) * rows_padded + i, totals[n])
        if SCORES:
            tl.store(partial + (1 + D + n) * rows_padded + i, shared[n])
            tl.store(partial + (1 + 2 * D + n) * rows_padded + i, scores[n])


@triton.jit(do_not_specialize=["rows_count"])
@no_type_check
def forward_shared(
    rows, table, normaliser, partial, rows_count, rows_padded, padded, chunk, own, after,
    D: tl.constexpr, UNEQUAL: tl.constexpr, SCORES: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute sums [chunks, M, 1 + 3 D, i]: terms of the group and of each leaf, then scores of both."""
    m, members, split = tl.program_id(2).to(tl.int64), tl.num_programs(2), tl.program_id(1)
    rows += m * D * rows_padded
    table += m * (3 * D + 1) * padded
    normaliser += m * (2 + D) * rows_padded
    partial += (split * members + m) * (1 + 3 * D) * rows_padded
    i0, start = tl.program_id(0) * BLOCK, split * chunk
    stop = tl.minimum(start + chunk, rows_count)
    near = False
    if UNEQUAL:  # few programs meet components of another weight; the others spare the comparisons
        near = _hold_neighbours(i0, i0 + BLOCK, start, start + chunk, rows_count)
        if near:
            _add_components(
                rows, table, normaliser, partial, i0, start, stop, rows_count, rows_padded, own, after,
                D, True, SCORES, STREAM, BLOCK,
            )  # fmt: skip
    if not near:
        _add_components(
            rows, table, normaliser, partial, i0, start, stop, rows_count, rows_padded, own, after,
            D, False, SCORES, STREAM, BLOCK,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows_count", "splits"])
@no_type_check
def combine_shared(
    partial, rows, components, out, normaliser, scores, rows_count, rows_padded, padded, splits, own, after,
    D: tl.constexpr, UNEQUAL: tl.constexpr, SCORES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Join the chunks like `combine`; a program whose sums are out of range or NaN computes them anew.

    It does one leaf of the group, or one single leaf. Each row keeps the sums that are in range, so that densities are
    the same without scores.
    """
    i0 = tl.program_id(0) * BLOCK
    i = i0 + tl.arange(0, BLOCK)
    which, m, members = tl.program_id(1), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    of_group, leaf = which < D, which % D
    output = tl.where(of_group, 0, 1 + leaf)
    at = partial + m * (1 + 3 * D) * rows_padded + i[None, :]
    total, score = tl.full((BLOCK,), 0.0, tl.float32), tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, splits, TILE):
        split = first + tl.arange(0, TILE)[:, None]
        part = at + split.to(tl.int64) * members * (1 + 3 * D) * rows_padded
        total += tl.sum(tl.load(part + output * rows_padded, mask=split < splits, other=0.0), 0)
        if SCORES:
            score += tl.sum(tl.load(part + (1 + D + which) * rows_padded, mask=split < splits, other=0.0), 0)
    binary = tl.log2(total)
    normaliser += m * (2 + D) * rows_padded + i
    highest = tl.where(of_group, tl.load(normaliser + (1 + D) * rows_padded), 0.0)
    held = (tl.abs(binary) <= _WIDEST) & _is_finite(highest)
    binary += highest
    score /= total
    known = held & _is_finite(score)
    if tl.max(tl.where((i < rows_count) & (known == 0), 1, 0), 0) != 0:
        rows += m * D * rows_padded
        components += m * (4 * D + 1) * padded
        peak, sum_, sloped = add_components_carefully(
            rows, components, components + (2 * D + output) * padded, i, i0, rows_count, rows_padded, padded, own,
            after, leaf, tl.where(of_group, 0, leaf), tl.where(of_group, D, leaf + 1), D, UNEQUAL, 8, BLOCK,
        )  # fmt: skip
        binary = tl.where(held, binary, peak + tl.log2(sum_))
        score = tl.where(known, score, sloped * tl.where(sum_ == 0.0, 0.0, 1 / sum_))
    if (which >= D) | (leaf == 0):
        tl.store(out + (m * (1 + D) + output) * rows_count + i, binary * _LN2, mask=i < rows_count)
        divisor = tl.where(binary == float("-inf"), float("inf"), binary)  # no gradient
        tl.store(normaliser + output * rows_padded, divisor, mask=i < rows_count)
    if SCORES:
        tl.store(scores + (m * 2 * D + which) * rows_count + i, score * (-2 * _LN2), mask=i < rows_count)


@triton.jit(do_not_specialize=["rows_count"])
@no_type_check
def backward_rows_shared(
    grad, scores, normaliser, rows, padded_grad, table, of_sample, rows_count, rows_padded, m_stride, g_stride,
    i_stride, D: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of samples [M, i, D], one leaf per program; copy `grad` of any layout to [M, 1 + D, i].

    Components need a table [M, i / STREAM, 2 D + 2, STREAM] of z, each leaf's gradient over its density, and the
    group's gradient and normaliser. Gradients are NaN there where the forward pass, too, had to be careful.
    """
    leaf, m = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, fits = i < rows_count, i < rows_padded
    grad += m * m_stride + i * i_stride
    padded_grad += m * (1 + D) * rows_padded + i
    normaliser += m * (2 + D) * rows_padded + i
    scores += (m * 2 * D + leaf) * rows_count + i
    table += m * (2 * D + 2) * rows_padded + i // STREAM * (2 * D + 2) * STREAM + i % STREAM
    shared = tl.load(grad, mask=inside, other=0.0)
    mine = tl.load(grad + (1 + leaf) * g_stride, mask=inside, other=0.0)
    tl.store(padded_grad + (1 + leaf) * rows_padded, mine, mask=fits)
    if leaf == 0:
        tl.store(padded_grad, shared, mask=fits)
        binary = tl.load(normaliser, mask=fits, other=0.0)
        relative = binary - tl.load(normaliser + (1 + D) * rows_padded, mask=fits, other=0.0)
        tl.store(table + 2 * D * STREAM, tl.where(_is_held(relative, binary), shared, float("nan")), mask=fits)
        tl.store(table + (2 * D + 1) * STREAM, binary, mask=fits)
    binary = tl.load(normaliser + (1 + leaf) * rows_padded, mask=fits, other=0.0)
    quotient = tl.where(_is_held(binary, binary), mine * tl.exp2(-binary), float("nan"))
    tl.store(table + (D + leaf) * STREAM, quotient, mask=fits)
    tl.store(table + leaf * STREAM, tl.load(rows + (m * D + leaf) * rows_padded + i, mask=fits, other=0.0), mask=fits)
    slope = mine * tl.load(scores + D * rows_count, mask=inside, other=0.0)
    slope += shared * tl.load(scores, mask=inside, other=0.0)
    tl.store(of_sample + (m * rows_count + i) * D + leaf, slope, mask=inside)


@triton.jit
@no_type_check
def _add_rows(
    table, components, partial, j0, start, stop, rows_count, padded, own, after,
    D: tl.constexpr, REWEIGH: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of a block of components from some rows.

    Return the sum of their absolute values, which is finite if all of them are.
    """
    j = j0 + tl.arange(0, BLOCK)
    mean, precision = _load_held(components, j, padded, D), _load_held(components + (3 * D + 1) * padded, j, padded, D)
    constant = tl.load(components + 2 * D * padded + j)
    constants = _load_held(components + (2 * D + 1) * padded, j, padded, D)
    slopes, curves = _zeros(BLOCK, D), _zeros(BLOCK, D)
    for i0 in range(start, stop, STREAM):
        tile = table + i0 * (2 * D + 2)
        z, quotient = _load_parts(tile, 0, D, STREAM), _load_parts(tile, D, 2 * D, STREAM)
        shared, binary = _load_parts(tile, 2 * D, 2 * D + 2, STREAM)
        for s in tl.static_range(STREAM):
            x, q, curvature, terms = constant - binary[s], (), (), ()
            if REWEIGH:
                excess = _find_excess(i0 + s, j, rows_count, own, after)
                x += excess
            for n in tl.static_range(D):
                u = z[n][s] - mean[n]
                q += (u * precision[n],)
                x -= u * q[n]
                curvature += (_HALF - u * q[n],)
                exponent = curvature[n] + (constants[n] - _HALF)
                if REWEIGH:
                    exponent += excess
                terms += (tl.exp2(exponent),)
            v = shared[s] * tl.exp2(x)
            steeper, rounder = (), ()
            for n in tl.static_range(D):
                weight = tl.fma(quotient[n][s], terms[n], v)  # or the compiler may multiply for v once per leaf
                steeper += (slopes[n] + weight * q[n],)
                rounder += (curves[n] + weight * curvature[n],)
            slopes, curves = steeper, rounder
    everything = tl.full((BLOCK,), 0.0, tl.float32)
    for n in tl.static_range(D):
        tl.store(partial + n * padded + j, slopes[n] * (2 * _LN2))
        tl.store(partial + (D + n) * padded + j, curves[n] * -_LN2)
        everything += tl.abs(slopes[n]) + tl.abs(curves[n])
    return everything


@triton.jit(do_not_specialize=["rows_count"])
@no_type_check
def backward_shared(
    table, grad, normaliser, rows, components, partial, rows_count, rows_padded, padded, chunk, own, after,
    D: tl.constexpr, UNEQUAL: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute gradients of components [chunks, M, 2 D, j].

    With v_ij = gradient times responsibility, of the group and of the leaf together,

        d mean_jd = sum_i v_ij q / k^2,   d log variance_jd = sum_i v_ij (u q / (2 k^2) - 1/2).
    """
    m, members, split = tl.program_id(2).to(tl.int64), tl.num_programs(2), tl.program_id(1)
    rows += m * D * rows_padded
    components += m * (4 * D + 1) * padded
    table += m * (2 * D + 2) * rows_padded
    grad += m * (1 + D) * rows_padded
    normaliser += m * (2 + D) * rows_padded
    partial += (split * members + m) * 2 * D * padded
    j0, start = tl.program_id(0) * BLOCK, split * chunk
    stop = tl.minimum(start + chunk, rows_count)
    everything = tl.full((BLOCK,), 0.0, tl.float32)
    near = False
    if UNEQUAL:
        near = _hold_neighbours(start, start + chunk, j0, j0 + BLOCK, rows_count)
        if near:
            everything = _add_rows(
                table, components, partial, j0, start, stop, rows_count, padded, own, after, D, True, STREAM, BLOCK
            )  # fmt: skip
    if not near:
        everything = _add_rows(
            table, components, partial, j0, start, stop, rows_count, padded, own, after, D, False, STREAM, BLOCK
        )  # fmt: skip
    if tl.max(tl.where(_is_finite(everything), 0, 1), 0) != 0:
        tl.debug_barrier()
        for held in range(j0, j0 + BLOCK, 32):
            add_rows_carefully(
                rows, components, grad, normaliser, partial, held, start, stop, rows_count, rows_padded, padded, own,
                after, D, UNEQUAL, 8, 32,
            )  # fmt: skip
