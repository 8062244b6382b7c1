"""BatchNorm that members can share a program with.

On CUDA torch hands a BatchNorm to cuDNN, after a look at its input's memory format, which `vmap` does not answer. The
same layer by torch's own kernel asks no such question.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
HALF = (torch.bfloat16, torch.float16)


class _Stackable(nn.modules.batchnorm._BatchNorm):
    """What torch's own layer computes, never by cuDNN. Made by `stackable`, not by hand."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [batch, channel, …]."""
        self._check_input_dim(input)
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        known = (self.running_mean, self.running_var) if tracked or not self.training else (None, None)
        of_batch = self.training or known[0] is None
        share = 0.0 if self.momentum is None else self.momentum
        x = input.float() if input.dtype in HALF else input  # its statistics are kept in full precision
        made = torch.native_batch_norm(x, self.weight, self.bias, *known, of_batch, share, self.eps)[0]
        return made.to(input.dtype)


class _Stackable1d(_Stackable, nn.BatchNorm1d): ...


class _Stackable2d(_Stackable, nn.BatchNorm2d): ...


class _Stackable3d(_Stackable, nn.BatchNorm3d): ...


KINDS: dict[type[nn.Module], type[_Stackable]] = {
    nn.BatchNorm1d: _Stackable1d,
    nn.BatchNorm2d: _Stackable2d,
    nn.BatchNorm3d: _Stackable3d,
}


def make_stackable(module: ModuleT) -> ModuleT:
    """Let every BatchNorm inside `module` be one that `vmap` takes on any device; returns the same module, changed.

    Parameters, buffers and names stay as they are, and so do subclasses of torch's own. A layer without momentum, whose
    running statistics are means over all batches, stays, too: it counts them one by one, which no stack can.
    """
    for layer in module.modules():
        if type(layer) in KINDS and getattr(layer, "momentum", None) is not None:
            layer.__class__ = KINDS[type(layer)]
    return module
