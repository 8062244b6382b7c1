"""A kernel that gathers rows of packed images on a GPU and unpacks them to floats in one launch."""

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.operators import Operator

_BLOCK = 1024


@triton.jit(do_not_specialize=["stored_width", "width", "blocks"])
@no_type_check
def _gather(stored, index, out, stored_width, width, blocks, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Unpack one of the `blocks` of numbers of one row: a bit each, the highest first, or a byte over 255."""
    row = (tl.program_id(0) // blocks).to(tl.int64)  # the other axes of a grid end at 65,535
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    source = stored + tl.load(index + row) * stored_width
    if BITS:
        byte = tl.load(source + place // 8, mask=place < width, other=0).to(tl.int32)
        value = ((byte >> (7 - place % 8)) & 1).to(tl.float32)
    else:
        value = tl.load(source + place, mask=place < width, other=0).to(tl.float32) / 255.0
    tl.store(out + row * width + place, value, mask=place < width)


@Operator
def gather_rows(stored: Tensor, index: Tensor, width: int, bits: bool) -> Tensor:
    """Return rows [*index, width] of bytes or packed bits `stored` [n, …] as float32."""
    rows = index.reshape(-1).contiguous()
    out = torch.empty(*index.shape, width, device=stored.device, dtype=torch.float32)
    blocks, stored_width = -(-width // _BLOCK), math.prod(stored.shape[1:])
    sizes = stored_width, width, blocks
    launch(_gather, (len(rows) * blocks,), stored, rows, out, *sizes, BITS=bits, BLOCK=_BLOCK, writes=(out,))
    return out


@gather_rows.register_fake
def _(stored: Tensor, index: Tensor, width: int, bits: bool) -> Tensor:
    return torch.empty(*index.shape, width, device=stored.device, dtype=torch.float32)
