"""BatchNorm that `vmap` can stack on CUDA.

On CUDA torch passes a BatchNorm to cuDNN and asks for its input's memory format, which fails under `vmap`. Torch's own
kernel does not ask.
"""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbraid.networks.fused_norm import FusableNorm

ModuleT = TypeVar("ModuleT", bound=nn.Module)
HALF_PRECISION = (torch.bfloat16, torch.float16)


class _Stackable(FusableNorm, nn.modules.batchnorm._BatchNorm):
    """Torch's BatchNorm without cuDNN; `make_stackable` makes it."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        tracked = self.training and self.track_running_stats
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        running = (self.running_mean, self.running_var) if tracked or not self.training else (None, None)
        use_batch = self.training or running[0] is None
        momentum = 0.0 if self.momentum is None else self.momentum
        if use_batch and self.affine and input.numel() > input.shape[1] and self.runs_kernels(input):
            return self._run_kernels(input, *running, momentum)
        x = input.float() if input.dtype in HALF_PRECISION else input  # statistics stay in full precision
        out = torch.native_batch_norm(x, self.weight, self.bias, *running, use_batch, momentum, self.eps)[0]
        out = out.to(input.dtype)
        return F.relu(out) if self.relu else out

    def _run_kernels(
        self, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
    ) -> Tensor:
        """Normalise by the statistics of the batch, and update the running ones as torch does."""
        weight, bias = self.weight.float(), self.bias.float()
        out, moments = torch.ops.unbraid.normalise(x, weight, bias, self.eps, self.relu, x.dtype)
        if running_mean is not None and running_var is not None:
            mean, variance = moments.unbind(-2)
            count = x.numel() // x.shape[1]
            for running, found in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):  # unbiased
                running.mul_(1 - momentum).add_(found, alpha=momentum)  # vmap has no rule for lerp_
        return out


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
