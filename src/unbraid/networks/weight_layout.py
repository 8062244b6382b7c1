"""Triton kernel that lays out the weight of `spread` in float32 along the axis that a product sums.

Tensor cores read float32 only so. Torch's copy reads or writes single numbers; here a program transposes a tile.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_tiles import power_of_two, transposes_weights, transposing_tile


@triton.jit
@no_type_check
def _transpose(
    weight, out, of_member, of_c, of_n, of_tap,
    C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Copy a tile [BLOCK_C, BLOCK_N] of one entry of the kernel to `out` [member, n, tap, c]; `of_…` are strides."""
    TILES_N: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    c = tl.program_id(0) // TILES_N * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    tap = tl.program_id(1)
    member = tl.program_id(2).to(tl.int64)
    inside = (c < C)[:, None] & (n < N)[None, :]
    source = weight + member * of_member + tap * of_tap
    tile = tl.load(source + (c * of_c)[:, None] + (n * of_n)[None, :], mask=inside, other=0.0)
    target = out + (member * N * TAPS + tap) * C
    tl.store(target + (n * (TAPS * C))[:, None] + c[None, :], tl.trans(tile), mask=tl.trans(inside))


def along_inputs(weight: Tensor) -> Tensor:
    """Return a weight [member, c, n, ky, kx] of float32 with c contiguous in memory: itself, or a copy."""
    members, C, N, height, width = weight.shape
    last = weight.movedim(1, -1)
    if last.is_contiguous() or not transposes_weights() or weight.stride(3) != width * weight.stride(4):
        return last.contiguous().movedim(-1, 1)
    out = weight.new_empty(members, N, height, width, C)
    side, warps = transposing_tile()
    block_c, block_n = power_of_two(C, side), power_of_two(N, side)
    launch(
        _transpose, (-(-C // block_c) * -(-N // block_n), height * width, members),
        weight, out, weight.stride(0), weight.stride(1), weight.stride(2), weight.stride(4),
        C=C, N=N, TAPS=height * width, BLOCK_C=block_c, BLOCK_N=block_n, num_warps=warps,
        writes=(out,),
    )  # fmt: skip
    return out.movedim(-1, 1)
