"""BatchNorm over the rows of all ranks, also on a CPU, where torch's SyncBatchNorm does not run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.errors import UsageError
from unbraid.training.collectives import stack_over_ranks

REPLACEABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class WorldBatchNorm(_BatchNorm):
    """BatchNorm with the statistics of the whole batch, and the parameters and buffers of the layer it replaces."""

    def __init__(self, plain: _BatchNorm, ranks: int) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self.ranks = ranks
        self.weight, self.bias = plain.weight, plain.bias
        self.running_mean, self.running_var = plain.running_mean, plain.running_var
        self.num_batches_tracked = plain.num_batches_tracked
        self.train(plain.training)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise an input [batch, channel, …]."""
        if not self.training and self.running_mean is not None:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        wide = input if input.dtype == torch.float64 else input.float()
        mean, variance = self._statistics(wide)
        if self.training and self.running_mean is not None:
            self._update_running_statistics(
                mean.detach(), variance.detach(), self.ranks * input.numel() // input.shape[1]
            )
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shape = (-1, *[1] * (input.ndim - 2))
        normal = (wide - mean.view(shape)) * scale.view(shape)
        return (normal if self.bias is None else normal + self.bias.view(shape)).to(input.dtype)

    def _statistics(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance per channel, by the law of total variance: sums of squares would cancel."""
        local = torch.var_mean(wide, [d for d in range(wide.ndim) if d != 1], correction=0)
        if self.ranks == 1:
            return local[1], local[0]
        variances, means = stack_over_ranks(torch.stack(local), self.ranks).unbind(1)  # [rank, channel], equal counts
        return means.mean(0), variances.mean(0) + means.var(0, correction=0)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update in place as torch does: by the momentum, or as the mean over all batches."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * (count / (count - 1)), share)


def synchronise_batchnorm(system: nn.Module, ranks: int) -> None:
    """Replace every BatchNorm inside a system if there are several ranks."""
    replaced: dict[nn.Module, nn.Module] = {}  # a layer in two places stays one layer
    for parent in list(system.modules()) if ranks > 1 else ():
        for name, layer in parent._modules.items():  # named_children skips the second name of a layer
            if isinstance(layer, _BatchNorm) and not isinstance(layer, WorldBatchNorm):
                if type(layer) not in REPLACEABLE:
                    raise UsageError(f"A {type(layer).__name__} layer cannot be shared by several processes.")
                parent._modules[name] = replaced.setdefault(layer, WorldBatchNorm(layer, ranks))


@contextmanager
def use_local_batchnorm(system: nn.Module) -> Iterator[None]:
    """Use the statistics of this rank's rows only, so that no rank waits for another."""
    layers = {layer: layer.ranks for layer in system.modules() if isinstance(layer, WorldBatchNorm)}
    try:
        for layer in layers:
            layer.ranks = 1
        yield
    finally:
        for layer, ranks in layers.items():
            layer.ranks = ranks
