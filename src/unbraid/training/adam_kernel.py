"""The update of Adam on a GPU in one launch per parameter, with a rate per member (see `stacked_adam.py`)."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit(do_not_specialize=["size", "gradient_size"])
@no_type_check
def _adam(
    parameter, gradient, mean, square, rate, spread, kept, alive, size, gradient_size, first, second, eps,
    DECAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of one member; a member that is not alive stays as it is, whatever its gradient is."""
    member = tl.program_id(1).to(tl.int64)
    if tl.load(alive + member) != 0:
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        g = tl.load(gradient + member * gradient_size + place, mask=inside, other=0.0)
        place = member * size + place
        m = tl.load(mean + place, mask=inside, other=0.0)
        v = tl.load(square + place, mask=inside, other=0.0)
        p = tl.load(parameter + place, mask=inside, other=0.0)
        m += (1 - first) * (g - m)
        v = v * second + (1 - second) * g * g
        if DECAY:
            p *= tl.load(kept + member)
        p -= tl.load(rate + member) * m / (tl.sqrt(v) / tl.load(spread + member) + eps)
        tl.store(mean + place, m, mask=inside)
        tl.store(square + place, v, mask=inside)
        tl.store(parameter + place, p, mask=inside)


def update(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rate: Tensor, spread: Tensor, kept: Tensor,
    alive: Tensor, betas: tuple[float, float], eps: float, decay: bool,
) -> None:  # fmt: skip
    """Move a parameter [member, …] and its moments in place.

    A member's part of all four tensors has the same layout in memory; gradients of members may lie further apart.
    """
    members, size = parameter.shape[0], parameter[0].numel()
    with torch.cuda.device_of(parameter):
        _adam[(-(-size // _BLOCK), members)](
            parameter,
            gradient,
            mean,
            square,
            rate,
            spread,
            kept,
            alive,
            size,
            gradient.stride(0),
            *betas,
            eps,
            DECAY=decay,
            BLOCK=_BLOCK,
        )
