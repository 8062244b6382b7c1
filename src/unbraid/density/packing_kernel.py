"""Triton kernel that lays out samples and posteriors for the kernels of `unbraid.density.fused_estimator`."""

import math
from typing import no_type_check

import triton
import triton.language as tl

from unbraid.density.triton_kernels import _K, _LOG2E

_FARTHEST = tl.constexpr(128.0)  # a sum of squares up to which the order of its rounding does not matter
_FLATTEST_SQUARE = tl.constexpr(2.0**-60)  # the smallest k/sigma whose square and its products keep all digits
_LOG_2PI = tl.constexpr(math.log(2 * math.pi))
_STEEPEST = tl.constexpr(80.0)  # the bound on -log sigma of the Normal block
_STEEPEST_SQUARE = tl.constexpr(2.0**63.5)  # the largest k/sigma whose square is a number of float32


@triton.jit
@no_type_check
def pack(
    sample, parameters, log_p, rows, components, normaliser, table, rows_count, count, rows_padded, padded,
    s_member, s_row, s_leaf, p_member, p_row, p_leaf, log_weight,
    MASK: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, HAS_LOG_P: tl.constexpr,
    SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Transpose samples to rows [M, D, i], and posteriors to components [M, 3 D + groups, j].

    A component is each leaf's mean, each leaf's k/sigma, and c + log2 w of each group and each leaf. The normalisers
    [M, groups + D, i] of padding rows become infinite, so that their responsibilities vanish.

    SHARED components end with p = (k/sigma)^2 of each leaf, NaN where float32 cannot hold it. SHARED is also the
    number of them that a program reads at once from a table [M, j / SHARED, 3 D + 1, SHARED] of means, p, and c +
    log2 w of the leaves and of the group. A last row of normalisers is the group's exponent of j = i, NaN if z_i
    is far from the mean.
    """
    width: tl.constexpr = 3 * D + GROUPS + (D if SHARED else 0)
    m = tl.program_id(1).to(tl.int64)
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    leaf = tl.arange(0, WIDTH)[None, :]
    at, real = n[:, None], leaf < D
    z = tl.load(sample + m * s_member + at * s_row + leaf * s_leaf, mask=real & (at < rows_count), other=0.0)
    tl.store(rows + (m * D + leaf) * rows_padded + at, z, mask=real & (at < rows_padded))
    normaliser += m * (GROUPS + D + (1 if SHARED else 0)) * rows_padded + n[:, None]
    beyond = (at >= rows_count) & (at < rows_padded)
    tl.store(normaliser + (GROUPS + leaf) * rows_padded, float("inf"), mask=real & beyond)
    source = parameters + m * p_member + at * p_row + leaf * p_leaf
    mean = tl.load(source, mask=real & (at < count), other=0.0)
    log_variance = tl.load(source + D * p_leaf, mask=real & (at < count), other=0.0)
    target, fits = components + (m * width + leaf) * padded + at, real & (at < padded)
    tl.store(target, mean, mask=fits)
    scale = tl.exp2(tl.minimum(-0.5 * log_variance, _STEEPEST) * _LOG2E) * _K
    tl.store(target + D * padded, scale, mask=fits)
    if HAS_LOG_P:
        log_weight += tl.load(log_p + n, mask=n < count, other=0.0)
    weight = tl.where(n < count, log_weight * _LOG2E, float("-inf"))
    constant = -0.5 * _LOG2E * (log_variance + _LOG_2PI)
    tl.store(target + (2 * D + GROUPS) * padded, constant + weight[:, None], mask=fits)
    if SHARED:
        has_square = (scale > _FLATTEST_SQUARE) & (scale < _STEEPEST_SQUARE)
        precision = tl.where(has_square, scale * scale, float("nan"))
        tl.store(target + (3 * D + GROUPS) * padded, precision, mask=fits)
        table += m * (3 * D + 1) * padded + n // SHARED * (3 * D + 1) * SHARED + n % SHARED
        cells = table[:, None] + leaf * SHARED
        tl.store(cells, mean, mask=fits)
        tl.store(cells + D * SHARED, precision, mask=fits)
        tl.store(cells + 2 * D * SHARED, constant + weight[:, None], mask=fits)
        joint = tl.sum(tl.where(real, constant, 0.0), 1)
        tl.store(table + 3 * D * SHARED, joint + weight, mask=n < padded)
        squares = tl.sum((z - mean) * ((z - mean) * precision), 1)
        own = tl.where(squares < _FARTHEST, joint - squares + weight, float("nan"))
        tl.store(normaliser + (GROUPS + D) * rows_padded, tl.where(n < count, own, 0.0)[:, None], mask=at < rows_padded)
    components += (m * width + 2 * D) * padded
    for g in tl.static_range(GROUPS):
        mask = tl.full((), MASK[g], tl.int64)
        members = tl.where(((mask >> leaf.to(tl.int64)) & 1) != 0, constant, 0.0)
        tl.store(components + g * padded + n, tl.sum(members, 1) + weight, mask=n < padded)
        tl.store(normaliser + g * rows_padded, float("inf"), mask=beyond)
