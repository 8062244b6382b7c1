"""Collective operations that autograd and the compiler know.

The derivative of a program in several processes is that of the sum of their losses. Every rank uses a gathered value,
so its gradient is the sum over the ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unbraid.operators import Operator


@Operator
def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the elementwise sum over the ranks; not differentiable."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


@sum_over_ranks.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@Operator
def stack_over_ranks(tensor: Tensor, ranks: int) -> Tensor:
    """Return the tensors of all ranks [rank, …]; differentiable."""
    stacked = tensor.new_empty((ranks, *tensor.shape))
    dist.all_gather(list(stacked.unbind(0)), tensor.contiguous())
    return stacked


@stack_over_ranks.register_fake
def _(tensor: Tensor, ranks: int) -> Tensor:
    return tensor.new_empty((ranks, *tensor.shape))


def _save_rank(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rank = dist.get_rank()


def _sum_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return sum_over_ranks(gradient)[ctx.rank].clone(), None


stack_over_ranks.register_autograd(_sum_gradient, setup_context=_save_rank)
