"""Batches of rows, recomputable from a seed and the step (see `unbraid.noise`)."""

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError


class Epochs:
    """Batches of row positions [member, batch], one permutation per epoch and member.

    No index repeats inside a batch: repeats would bias every minibatch estimate of q(z). Rows that do not fill a
    last batch sit out the epoch.
    """

    def __init__(self, count: int, batch: int, seeds: Tensor) -> None:
        if batch > count:
            raise UsageError(f"batch={batch} is more than the {count} rows to train on; choose batch={count} or less.")
        self.count, self.batch, self.seeds = count, batch, seeds
        self.per_epoch = count // batch
        self._epoch, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> Tensor:
        self.lay_out_epoch(step)
        return self.batch_at(step).clone()  # the next epoch overwrites the permutation

    def lay_out_epoch(self, step: int) -> None:
        """Write the permutation of a step's epoch; in place, because a captured step reads it at a fixed address."""
        epoch = step // self.per_epoch
        if epoch == self._epoch:
            return
        order = noise.permutation(self.seeds, epoch, self.count)
        self._order = order if self._epoch < 0 else self._order.copy_(order)
        self._epoch = epoch

    def batch_at(self, step: int | Tensor) -> Tensor:
        """Return the batch of a step of the current epoch; the step may be a tensor on the seeds' device."""
        start = step % self.per_epoch * self.batch
        if isinstance(start, int):
            return self._order[:, start : start + self.batch]
        return self._order.index_select(1, start + torch.arange(self.batch, device=self._order.device))
