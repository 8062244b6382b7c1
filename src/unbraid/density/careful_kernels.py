"""Parts of Triton kernels that compute again what `unbraid.density.shared_kernels` cannot hold in float32.

The formulas are those of the general form (`unbraid.density.triton_kernels`), with a running maximum and t = (z - mean)
k / sigma. Exponents may be so large that responsibilities are wrong unless both passes round alike; `fma` leaves the
compiler no choice. They hardly ever run, so their loops over leaves are not unrolled, which saves time to compile.
"""

from typing import no_type_check

import triton
import triton.language as tl

from unbraid.density.triton_kernels import _CLAMPED, _LN2, _LOWEST, _reweigh


@triton.jit
@no_type_check
def add_components_carefully(
    rows, components, constants, i, i0, rows_count, rows_padded, padded, own, after, leaf, first, last,
    D: tl.constexpr, UNEQUAL: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return maximum, sum, and sum for one leaf's score over all components; the exponent has leaves [first, last)."""
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    total, score = tl.full((BLOCK,), 0.0, tl.float32), tl.full((BLOCK,), 0.0, tl.float32)
    scales = components + D * padded
    for j0 in range(0, rows_count, STREAM):
        j = j0 + tl.arange(0, STREAM)
        squares = tl.full((STREAM, BLOCK), 0.0, tl.float32)
        for each in range(first, last):
            z = tl.load(rows + each * rows_padded + i)[None, :]
            t = (z - tl.load(components + each * padded + j)[:, None]) * tl.load(scales + each * padded + j)[:, None]
            squares = tl.fma(t, t, squares)
        x = tl.load(constants + j)[:, None] - squares
        if UNEQUAL:
            x = _reweigh(x, i[None, :], j[:, None], i0, j0, rows_count, own, after, BLOCK, STREAM)
        higher = tl.maximum(highest, tl.max(x, 0))
        weight, shrink = tl.exp2(x - higher[None, :]), tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weight, 0)
        scale = tl.load(scales + leaf * padded + j)[:, None]
        t = (tl.load(rows + leaf * rows_padded + i)[None, :] - tl.load(components + leaf * padded + j)[:, None]) * scale
        score = score * shrink + tl.sum(weight * t * scale, 0)
        highest = higher
    return highest, total, score


@triton.jit
@no_type_check
def add_rows_carefully(
    rows, components, grad, normaliser, partial, j0, start, stop, rows_count, rows_padded, padded, own, after,
    D: tl.constexpr, UNEQUAL: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store gradients of a block of components from some rows, one leaf after the other."""
    j = j0 + tl.arange(0, BLOCK)
    scales = components + D * padded
    for leaf in range(D):
        mean, scale = tl.load(components + leaf * padded + j), tl.load(scales + leaf * padded + j)
        slope, curve = tl.full((BLOCK,), 0.0, tl.float32), tl.full((BLOCK,), 0.0, tl.float32)
        weight = tl.full((BLOCK,), 0.0, tl.float32)
        for i0 in range(start, stop, STREAM):
            i = i0 + tl.arange(0, STREAM)
            squares = tl.full((STREAM, BLOCK), 0.0, tl.float32)
            for each in range(D):
                z = tl.load(rows + each * rows_padded + i)[:, None]
                t = (z - tl.load(components + each * padded + j)[None, :]) * tl.load(scales + each * padded + j)[
                    None, :
                ]
                squares = tl.fma(t, t, squares)
            t = (tl.load(rows + leaf * rows_padded + i)[:, None] - mean[None, :]) * scale[None, :]
            x = tl.load(components + 2 * D * padded + j)[None, :] - squares
            square = tl.fma(t, t, tl.full((STREAM, BLOCK), 0.0, tl.float32))
            alone = tl.load(components + (2 * D + 1 + leaf) * padded + j)[None, :] - square
            if UNEQUAL:
                x = _reweigh(x, i[:, None], j[None, :], i0, j0, rows_count, own, after, STREAM, BLOCK)
                alone = _reweigh(alone, i[:, None], j[None, :], i0, j0, rows_count, own, after, STREAM, BLOCK)
            mine = (1 + leaf) * rows_padded + i
            v = tl.load(grad + i)[:, None] * tl.exp2(x - tl.load(normaliser + i)[:, None])
            v += tl.load(grad + mine)[:, None] * tl.exp2(alone - tl.load(normaliser + mine)[:, None])
            weight += tl.sum(v, 0)
            slope += tl.sum(v * t, 0)  # 0 times a finite number, where t^2 by itself would be infinite
            curve += tl.sum(v * t * t, 0)
        at = partial + leaf * padded + j
        tl.store(at, scale * slope * (2 * _LN2))
        tl.store(at + D * padded, tl.where(scale < _CLAMPED, curve * _LN2, 0.0) - 0.5 * weight)
