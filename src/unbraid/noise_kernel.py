"""The numbers of `unbraid.noise` on a GPU, in one launch of a Triton kernel."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.operators import Operator

UNIFORM, NORMAL = 0, 1

_BLOCK = 512


@triton.jit
@no_type_check
def _mix(x):
    """Apply the splitmix64 finaliser; shifts are logical."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
@no_type_check
def _unit(key, address):
    """Return a float64 in (0, 1) from the upper 53 bits of a hash."""
    bits = _mix(key + address)
    return (((bits >> 11) & ((1 << 53) - 1)).to(tl.float64) + 0.5) * 1.1102230246251565e-16


@triton.jit(do_not_specialize=["first", "second", "count"])
@no_type_check
def _draw(seeds, step, out, first, second, count, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    """Draw numbers of one member from the name hashes `first` and, for Normal ones, `second`."""
    member = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed = _mix(tl.load(seeds + member))
    now = tl.load(step)
    address = _mix((place + 1).to(tl.int64))
    value = _unit(_mix(_mix(seed + first) + now), address)
    if NORMAL:
        angle = _unit(_mix(_mix(seed + second) + now), address)
        number = (tl.sqrt(-2 * tl.log(value)) * tl.cos(6.283185307179586 * angle)).to(tl.float32)
    else:
        number = tl.minimum(tl.maximum(value.to(tl.float32), 2.0**-25), 1 - 2.0**-24)
    tl.store(out + member.to(tl.int64) * count + place, number, mask=place < count)


@triton.jit(do_not_specialize=["name", "count"])
@no_type_check
def _draw_bits(seeds, step, out, seed_stride, step_stride, name, count, BLOCK: tl.constexpr):
    """Draw 64 bits per element of one member; members are on the grid's first axis, since there may be 100,000."""
    blocks = tl.cdiv(count, BLOCK)
    member = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    seed = _mix(tl.load(seeds + member * seed_stride))
    key = _mix(_mix(seed + name) + tl.load(step + member * step_stride))
    tl.store(out + member * count + place, _mix(key + _mix((place + 1).to(tl.int64))), mask=place < count)


@Operator
def hash_bits(seeds: Tensor, step: Tensor, name: int, count: int) -> Tensor:
    """Return bits [member, count] in int64; `step` is an int64 tensor with one number, or with one for each member."""
    out = torch.empty(len(seeds), count, device=seeds.device, dtype=torch.int64)
    strides = seeds.stride(0), step.stride(0) if step.ndim else 0
    grid = (-(-count // _BLOCK) * len(seeds),)
    launch(_draw_bits, grid, seeds, step, out, *strides, name, count, BLOCK=_BLOCK, writes=(out,))
    return out


@hash_bits.register_fake
def _(seeds: Tensor, step: Tensor, name: int, count: int) -> Tensor:
    return torch.empty(len(seeds), count, device=seeds.device, dtype=torch.int64)


@Operator
def hash_noise(seeds: Tensor, step: Tensor, first: int, second: int, count: int, kind: int) -> Tensor:
    """Return numbers [member, count] in float32; `step` is an int64 tensor with one number."""
    out = torch.empty(len(seeds), count, device=seeds.device, dtype=torch.float32)
    grid = -(-count // _BLOCK), len(seeds)
    launch(_draw, grid, seeds, step, out, first, second, count, NORMAL=kind == NORMAL, BLOCK=_BLOCK, writes=(out,))
    return out


@hash_noise.register_fake
def _(seeds: Tensor, step: Tensor, first: int, second: int, count: int, kind: int) -> Tensor:
    return torch.empty(len(seeds), count, device=seeds.device, dtype=torch.float32)
