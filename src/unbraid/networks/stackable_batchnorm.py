"""BatchNorm that `vmap` can stack on CUDA.

On CUDA torch passes a BatchNorm to cuDNN and asks for its input's memory format, which fails under `vmap`. Torch's own
kernel does not ask.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
HALF_PRECISION = (torch.bfloat16, torch.float16)


class _Stackable(nn.modules.batchnorm._BatchNorm):
    """Torch's BatchNorm without cuDNN; `make_stackable` makes it."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        running = (self.running_mean, self.running_var) if tracked or not self.training else (None, None)
        use_batch = self.training or running[0] is None
        momentum = 0.0 if self.momentum is None else self.momentum
        x = input.float() if input.dtype in HALF_PRECISION else input  # statistics stay in full precision
        out = torch.native_batch_norm(x, self.weight, self.bias, *running, use_batch, momentum, self.eps)[0]
        return out.to(input.dtype)


class _Stackable1d(_Stackable, nn.BatchNorm1d): ...


class _Stackable2d(_Stackable, nn.BatchNorm2d): ...


class _Stackable3d(_Stackable, nn.BatchNorm3d): ...


STACKABLE: dict[type[nn.Module], type[_Stackable]] = {
    nn.BatchNorm1d: _Stackable1d,
    nn.BatchNorm2d: _Stackable2d,
    nn.BatchNorm3d: _Stackable3d,
}


def make_stackable(module: ModuleT) -> ModuleT:
    """Change every BatchNorm inside `module` into one that `vmap` can stack on any device; return the same module.

    Parameters, buffers and names do not change. Subclasses of torch's layers stay as they are, and so does a layer
    without momentum: its running statistics are means over all batches, and a stack cannot count those.
    """
    for layer in module.modules():
        if type(layer) in STACKABLE and getattr(layer, "momentum", None) is not None:
            layer.__class__ = STACKABLE[type(layer)]
    return module
