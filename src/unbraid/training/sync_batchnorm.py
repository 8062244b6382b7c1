"""BatchNorm over the rows of all ranks; torch's own SyncBatchNorm does that on GPUs alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from unbraid.errors import UsageError
from unbraid.training.collectives import stack_over_ranks

KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class WorldBatchNorm(_BatchNorm):
    """The layer that it replaces, with its parameters, buffers and names, but statistics of the whole batch."""

    def __init__(self, plain: _BatchNorm, ranks: int) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self.ranks = ranks
        self.weight, self.bias = plain.weight, plain.bias
        self.running_mean, self.running_var = plain.running_mean, plain.running_var
        self.num_batches_tracked = plain.num_batches_tracked
        self.train(plain.training)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [batch, channel, …]."""
        if not self.training and self.running_mean is not None:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        wide = input if input.dtype == torch.float64 else input.float()
        mean, variance = self._statistics(wide)
        if self.training and self.running_mean is not None:
            self._remember(mean.detach(), variance.detach(), self.ranks * input.numel() // input.shape[1])
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        place = (-1, *[1] * (input.ndim - 2))
        normal = (wide - mean.view(place)) * scale.view(place)
        return (normal if self.bias is None else normal + self.bias.view(place)).to(input.dtype)

    def _statistics(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance of each channel, by the law of total variance: sums of squares would cancel."""
        own = torch.var_mean(wide, [d for d in range(wide.ndim) if d != 1], correction=0)
        if self.ranks == 1:
            return own[1], own[0]
        variances, means = stack_over_ranks(torch.stack(own), self.ranks).unbind(1)  # [rank, channel], equal counts
        return means.mean(0), variances.mean(0) + means.var(0, correction=0)

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Move the running statistics, in place, as torch does: by the momentum, or as a mean over all batches."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * (count / (count - 1)), share)


def synchronise_batchnorm(system: nn.Module, ranks: int) -> None:
    """Replace every BatchNorm inside a system, unless there is one rank alone."""
    made: dict[nn.Module, nn.Module] = {}  # a layer in two places stays one layer
    for parent in list(system.modules()) if ranks > 1 else ():
        for name, layer in parent._modules.items():  # named_children leaves out a layer's second name
            if isinstance(layer, _BatchNorm) and not isinstance(layer, WorldBatchNorm):
                if type(layer) not in KNOWN:
                    raise UsageError(f"A {type(layer).__name__} layer cannot be shared by several processes.")
                parent._modules[name] = made.setdefault(layer, WorldBatchNorm(layer, ranks))


@contextmanager
def use_local_batchnorm(system: nn.Module) -> Iterator[None]:
    """Let every synchronised BatchNorm look at this rank's rows only, so that no rank waits for another."""
    layers = {layer: layer.ranks for layer in system.modules() if isinstance(layer, WorldBatchNorm)}
    try:
        for layer in layers:
            layer.ranks = 1
        yield
    finally:
        for layer, ranks in layers.items():
            layer.ranks = ranks
