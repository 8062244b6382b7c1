"""Normalisations that kernels of this library compute together with the operations around them.

Torch computes a normalisation as a dozen passes over its maps, in float32. The kernels keep the maps in bfloat16, read
them once or twice in each direction, and write them once (`norm_kernels.py`).
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from unbraid.kernels import INTERPRETED
from unbraid.networks.conv_as_matmul import PassedReLU, find_relus

ModuleT = TypeVar("ModuleT", bound=nn.Module)
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class FusableNorm(nn.Module):
    """Base class of layers that normalise maps, by kernels of this library if `fuse_normalisations` lets them."""

    fused: bool = False
    relu: bool = False  # the layer computes the ReLU after it, in an `nn.Sequential`

    def runs_kernels(self, x: Tensor) -> bool:
        """Return whether the kernels normalise maps x [batch, channel, row, column]."""
        supported = x.ndim == 4 and x.dtype in KERNEL_TYPES and x.numel() > 0
        return self.fused and supported and (x.is_cuda or INTERPRETED)


def fuse_normalisations(module: ModuleT, fused: bool = True) -> ModuleT:
    """Let kernels compute every AdaIN and every stackable BatchNorm inside `module`; return the same module.

    They need a GPU and Triton, and also compute a ReLU that follows a BatchNorm in an `nn.Sequential`. Parameters,
    names and results (up to rounding) do not change. `fused=False` switches back to torch's operations, to compare.
    """
    if fused:
        from unbraid.networks import norm_ops as _registered  # noqa: F401  registers torch.ops.unbraid.*
    for layer in module.modules():
        if isinstance(layer, FusableNorm):
            layer.fused = fused
    for layer, relu, _ in find_relus(module):
        if isinstance(layer, FusableNorm):
            layer.relu, relu.__class__ = True, PassedReLU
    return module
