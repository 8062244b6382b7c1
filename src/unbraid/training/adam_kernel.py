"""Adam on a GPU with a learning rate per member, in one launch per parameter (see `adam.py`)."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit(do_not_specialize=["size", "gradient_size"])
@no_type_check
def _adam(
    parameter, gradient, mean, square, rate, correction, keep, alive, size, gradient_size, first, second, eps,
    DECAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update one block of one member, unless that member is not alive."""
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
            p *= tl.load(keep + member)
        p -= tl.load(rate + member) * m / (tl.sqrt(v) / tl.load(correction + member) + eps)
        tl.store(mean + place, m, mask=inside)
        tl.store(square + place, v, mask=inside)
        tl.store(parameter + place, p, mask=inside)


def update(
    parameter: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rate: Tensor, correction: Tensor, keep: Tensor,
    alive: Tensor, betas: tuple[float, float], eps: float, decay: bool,
) -> None:  # fmt: skip
    """Update a parameter [member, …] and its moments in place.

    All four tensors lay out a member in the same way; only the gradient may have gaps between members. `correction`
    [member] is sqrt(1 - b2^t), and `keep` [member] the share of a weight that its decay leaves.
    """
    members, size = parameter.shape[0], parameter[0].numel()
    with torch.cuda.device_of(parameter):
        _adam[(-(-size // _BLOCK), members)](
            parameter,
            gradient,
            mean,
            square,
            rate,
            correction,
            keep,
            alive,
            size,
            gradient.stride(0),
            *betas,
            eps,
            DECAY=decay,
            BLOCK=_BLOCK,
        )
