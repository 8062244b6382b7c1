"""Triton kernel that adds what the programs of a gradient summed, in a fixed order.

The programs of one member are few, so a thread has all their numbers under way at once, as vectors of four.
"""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.networks.conv_tiles import adding_tile, adds_parts


@triton.jit(do_not_specialize=["members"])
@no_type_check
def _add_parts(parts, out, members, size, PARTS: tl.constexpr, GROUPED: tl.constexpr, BLOCK: tl.constexpr):
    """Add one block of the numbers of one member: `parts` is [PARTS, members, GROUPED, size], `out` [members, size]."""
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for part in tl.static_range(PARTS):
        for group in tl.static_range(GROUPED):
            start = ((part * members + member) * GROUPED + group) * size
            total += tl.load(parts + start + place, mask=inside, other=0.0)
    tl.store(out + member * size + place, total, mask=inside)


def add_parts(parts: Tensor) -> Tensor:
    """Return the sums [member, size] of [part, member, size] or [part, member, group, size], in float32."""
    grouped = parts.shape[2] if parts.ndim == 4 else 1
    members, size = parts.shape[1], parts.shape[-1]
    if len(parts) * grouped == 1:
        return parts.view(members, size)
    if not adds_parts(len(parts) * grouped):
        return parts.sum(0 if parts.ndim == 3 else (0, 2))
    out, (block, warps) = parts.new_empty(members, size), adding_tile()
    launch(
        _add_parts, (-(-size // block), members),
        parts, out, members, size, PARTS=len(parts), GROUPED=grouped, BLOCK=block, num_warps=warps,
        writes=(out,),
    )  # fmt: skip
    return out
