"""Positions of leaves as tensors that stay on their device.

Indexing with a Python list copies the list to the device at every call, and no such copy can be recorded in a CUDA
graph. So the tensor of each list is made once per device.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def select(tensor: Tensor, positions: Sequence[int], dim: int = -1) -> Tensor:
    """Return the entries of a tensor at these positions of a dimension, counted from the last one (-1, -2, …).

    Neighbours in order are a view, whose gradient needs no scatter.
    """
    if positions and list(positions) == list(range(positions[0], positions[-1] + 1)):
        return tensor.narrow(dim, positions[0], len(positions))
    index = _positions_on(tuple(positions), tensor.device)
    return tensor[(..., index, *[slice(None)] * (-1 - dim))]


@cache
def _positions_on(positions: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(positions, dtype=torch.int64, device=device)
