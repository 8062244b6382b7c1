"""Shapes of tensors that broadcast."""

from collections.abc import Sequence

import torch
from torch import Tensor


def broadcast_leading(tensors: Sequence[Tensor], trailing: int = 1) -> torch.Size:
    """Return the common shape of tensors without their last `trailing` axes.

    `torch.broadcast_shapes` imports the compiler when it is first called, which takes seconds.
    """
    corners = [tensor[(..., *[slice(1)] * trailing)] for tensor in tensors]
    return torch.broadcast_tensors(*corners)[0].shape[:-trailing]
