"""Adam on a GPU with a learning rate per member, in few launches for all parameters (see `adam.py`)."""

import math
from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch

_BLOCK = 1024

MIN_NUMBERS_ALONE = 2**20
"""A parameter with this many numbers over all members gets its own launch, which does not search for its parameter."""


class Update(NamedTuple):
    """The tensors [member, …] of one parameter; all lay out a member alike, and only `gradient` may have gaps between.

    `copy` is the parameter in bfloat16, which the kernel writes, too; `decays` is true if weight decay applies.
    """

    parameter: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    copy: Tensor | None
    decays: bool


@triton.jit
@no_type_check
def _pointer(address, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    """Return an address as a pointer, to which vectors of four numbers of a type are aligned if ALIGNED."""
    pointer = address.to(tl.pointer_type(dtype))
    return tl.multiple_of(pointer, 8 if dtype == tl.bfloat16 else 16) if ALIGNED else pointer


@triton.jit
@no_type_check
def _adam(
    parameters, gradients, means, squares, copies, sizes, gaps, decays, steps, rates, alive,
    first, second, log_first, log_second, eps, weight_decay, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update one block of one parameter of one member, unless that member is not alive.

    ALIGNED: all members' numbers start at multiples of 16 bytes, so they move as vectors; Triton cannot know it of
    addresses.

    The blocks of all parameters are numbered one after the other; the loop finds the parameter of this program's.
    `log_…` are logarithms to base 2, since b^t = 2^(t log b).
    """
    block = tl.program_id(0)
    member = tl.program_id(1).to(tl.int64)
    if tl.load(alive + member) != 0:
        start, next_start = 0, 0
        size, gap, decay = sizes[0], gaps[0], decays[0]
        # Addresses, since pointers to different types have no common one.
        p_at, g_at = parameters[0].to(tl.int64), gradients[0].to(tl.int64)
        m_at, v_at, copy_at = means[0].to(tl.int64), squares[0].to(tl.int64), copies[0].to(tl.int64)
        half, copied = gradients[0].dtype.element_ty == tl.bfloat16, copies[0].dtype.element_ty == tl.bfloat16
        for i in tl.static_range(1, len(parameters)):
            next_start += (sizes[i - 1] + BLOCK - 1) // BLOCK
            here = block >= next_start
            start, size = tl.where(here, next_start, start), tl.where(here, sizes[i], size)
            gap, decay = tl.where(here, gaps[i], gap), tl.where(here, decays[i], decay)
            p_at, g_at = (
                tl.where(here, parameters[i].to(tl.int64), p_at),
                tl.where(here, gradients[i].to(tl.int64), g_at),
            )
            m_at, v_at = tl.where(here, means[i].to(tl.int64), m_at), tl.where(here, squares[i].to(tl.int64), v_at)
            copy_at = tl.where(here, copies[i].to(tl.int64), copy_at)
            half = tl.where(here, gradients[i].dtype.element_ty == tl.bfloat16, half)
            copied = tl.where(here, copies[i].dtype.element_ty == tl.bfloat16, copied)
        place = (block - start) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        at = member * gap + place
        from_half = tl.load(_pointer(g_at, tl.bfloat16, ALIGNED) + at, mask=inside & half, other=0.0)
        from_full = tl.load(_pointer(g_at, tl.float32, ALIGNED) + at, mask=inside & (half == 0), other=0.0)
        g = from_half.to(tl.float32) + from_full
        place = member * size + place
        m_at, v_at = _pointer(m_at, tl.float32, ALIGNED) + place, _pointer(v_at, tl.float32, ALIGNED) + place
        p_at, copy_at = _pointer(p_at, tl.float32, ALIGNED) + place, _pointer(copy_at, tl.bfloat16, ALIGNED) + place
        m = tl.load(m_at, mask=inside, other=0.0)
        v = tl.load(v_at, mask=inside, other=0.0)
        p = tl.load(p_at, mask=inside, other=0.0)
        rate, step = tl.load(rates + member), tl.load(steps + member)
        m += (1 - first) * (g - m)
        v = v * second + (1 - second) * g * g
        correction = tl.sqrt(1 - tl.exp2(step * log_second))
        p *= 1 - rate * weight_decay * decay
        p -= rate / (1 - tl.exp2(step * log_first)) * m / (tl.sqrt(v) / correction + eps)
        tl.store(m_at, m, mask=inside)
        tl.store(v_at, v, mask=inside)
        tl.store(p_at, p, mask=inside)
        tl.store(copy_at, p.to(tl.bfloat16), mask=inside & copied)


def update_all(
    updates: Sequence[Update], steps: Tensor, rates: Tensor, alive: Tensor, betas: tuple[float, float], eps: float,
    weight_decay: float,
) -> None:  # fmt: skip
    """Update parameters and moments in place; `steps` [member] counts each member's steps, this one included."""
    large = [update for update in updates if update.parameter.numel() >= MIN_NUMBERS_ALONE]
    small = [update for update in updates if update.parameter.numel() < MIN_NUMBERS_ALONE]
    for together in [*([update] for update in large), *([small] if small else [])]:
        _update(together, steps, rates, alive, betas, eps, weight_decay)


def _update(
    updates: Sequence[Update], steps: Tensor, rates: Tensor, alive: Tensor, betas: tuple[float, float], eps: float,
    weight_decay: float,
) -> None:  # fmt: skip
    """Update some parameters in one launch."""
    parameters, gradients, means, squares, copies, decays = zip(*updates, strict=True)
    sizes = tuple(p[0].numel() for p in parameters)
    gaps = tuple(g.stride(0) for g in gradients)
    starts = (t.data_ptr() for update in updates for t in update[:5] if t is not None)
    launch(
        _adam, (sum(-(-size // _BLOCK) for size in sizes), len(rates)),
        parameters, gradients, means, squares,
        tuple(p if copy is None else copy for p, copy in zip(parameters, copies, strict=True)),
        sizes, gaps, tuple(map(int, decays)), steps, rates, alive,
        *betas, *(math.log2(beta) if beta else -math.inf for beta in betas), eps, weight_decay,
        ALIGNED=all(number % 16 == 0 for number in (*sizes, *gaps, *starts)), BLOCK=_BLOCK,
    )  # fmt: skip
