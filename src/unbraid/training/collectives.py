"""Tensors of all processes, as operators that autograd and the compiler know.

The derivative of a program that runs in several processes is the derivative of the sum of their losses. A value that
every rank receives is used by every rank, so its gradient is the sum over the ranks: that is all there is to it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unbraid.operators import Operator


@Operator
def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Elementwise sum, the same on every rank; without a gradient."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


@sum_over_ranks.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@Operator
def stack_over_ranks(tensor: Tensor, ranks: int) -> Tensor:
    """The tensors of all ranks [rank, …], the same on every rank; differentiable."""
    stacked = tensor.new_empty((ranks, *tensor.shape))
    dist.all_gather(list(stacked.unbind(0)), tensor.contiguous())
    return stacked


@stack_over_ranks.register_fake
def _(tensor: Tensor, ranks: int) -> Tensor:
    return tensor.new_empty((ranks, *tensor.shape))


def _keep_rank(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rank = dist.get_rank()


def _own_part_of_the_sum(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return sum_over_ranks(gradient)[ctx.rank].clone(), None


stack_over_ranks.register_autograd(_own_part_of_the_sum, setup_context=_keep_rank)
