"""Log likelihood of Bernoulli pixels on a GPU: one launch forward, one backward.

log p(x|l) = sum over pixels of x l - max(l, 0) - log(1 + e^-|l|)        gradient of l: x - sigmoid(l)
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from unbraid.kernels import launch
from unbraid.operators import Operator

_BLOCK = 1024
_SUMMED, _WARPS = 512, 4  # a program of the forward pass

MULTIPLIES = True
"""False makes the forward pass take a logarithm for each pixel."""

_FACTORS = 64
"""Factors of a product, each at most 2: their product is far from the largest float32."""


@triton.jit
@no_type_check
def _forward(logits, x, out, width, FACTORS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum over one row, block by block.

    A logarithm takes more instructions than all else, so one is taken of each product of FACTORS numbers 1 + e^-|l|.
    """
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, FACTORS * BLOCK):
        product = tl.full((BLOCK,), 1.0, tl.float32)
        for start in range(first, tl.minimum(first + FACTORS * BLOCK, width), BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < width
            logit = tl.load(logits + row * width + place, mask=inside, other=0.0).to(tl.float32)
            pixel = tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
            total += pixel * logit - tl.maximum(logit, 0.0)
            product *= tl.where(inside, 1.0 + tl.exp(-tl.abs(logit)), 1.0)
        total -= tl.log(product)
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
@no_type_check
def _backward(grad, logits, x, out, width, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)  # the other axes of a grid end at 65,535
    place = tl.program_id(0) % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    logit = tl.load(logits + row * width + place, mask=inside, other=0.0).to(tl.float32)
    pixel = tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(grad + row) * (pixel - tl.sigmoid(logit))
    tl.store(out + row * width + place, gradient.to(out.dtype.element_ty), mask=inside)


@Operator
def bernoulli_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """Return log p(x|l) [rows] of logits and observations [rows, width], contiguous; in float32."""
    out = logits.new_empty(len(logits), dtype=torch.float32)
    how = {"FACTORS": _FACTORS if MULTIPLIES else 1, "BLOCK": _SUMMED, "num_warps": _WARPS}
    launch(_forward, (len(logits),), logits, x, out, logits.shape[1], **how, writes=(out,))
    return out


@bernoulli_log_prob.register_fake
def _(logits: Tensor, x: Tensor) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


@Operator
def bernoulli_log_prob_backward(grad: Tensor, logits: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the logits [rows, width] from that of the log likelihoods [rows]."""
    out, width = torch.empty_like(logits), logits.shape[1]
    blocks = -(-width // _BLOCK)
    how = {"BLOCKS": blocks, "BLOCK": _BLOCK}
    launch(_backward, (len(logits) * blocks,), grad.contiguous(), logits, x, out, width, **how, writes=(out,))
    return out


@bernoulli_log_prob_backward.register_fake
def _(grad: Tensor, logits: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    logits, x = ctx.saved_tensors
    return bernoulli_log_prob_backward(grad, logits, x), None


bernoulli_log_prob.register_autograd(_differentiate, setup_context=_save_inputs)


def _differentiate_twice(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, logits, x = ctx.saved_tensors
    probability = logits.float().sigmoid()
    logit_gradient = -(grad * rows[:, None] * probability * (1 - probability)).to(logits.dtype)
    return (grad * (x - probability)).sum(-1), logit_gradient, None


bernoulli_log_prob_backward.register_autograd(_differentiate_twice, setup_context=_save_inputs)
