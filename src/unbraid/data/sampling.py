"""Which rows come next: epochs without repeats, rows that share a factor, pairs.

Everything is recomputable from a seed and a counter (see `unbraid.noise`); nothing keeps a generator.
"""

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError


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
        self.turn_to(step)
        return self.at(step).clone()  # the next epoch is laid out in the same place

    def turn_to(self, step: int) -> None:
        """Lay out the permutation of a step's epoch; in place, because a captured step reads it at a fixed address."""
        epoch = step // self.per_epoch
        if epoch == self._epoch:
            return
        order = noise.permutation(self.seeds, epoch, self.count)
        self._order = order if self._epoch < 0 else self._order.copy_(order)
        self._epoch = epoch

    def at(self, step: int | Tensor) -> Tensor:
        """Batch of a step of the epoch that was turned to; the step may be a tensor on the seeds' device."""
        start = step % self.per_epoch * self.batch
        if isinstance(start, int):
            return self._order[:, start : start + self.batch]
        return self._order.index_select(1, start + torch.arange(self.batch, device=self._order.device))


def random_rows(dataset: FactorDataset, count: int, seed: int, draw: int) -> Tensor:
    """`count` independent rows (with replacement, as evaluation protocols draw them)."""
    return _below(len(dataset), count, seed, draw, "rows", dataset.device)


def _below(limit: int, count: int, seed: int, draw: int, name: str, device: torch.device) -> Tensor:
    """`count` whole numbers from 0 up to `limit`, each as likely as the others (to 2^-40)."""
    bits = noise.bits(noise.seed_tensor(seed, device=device), draw, name, (count,))[0]
    return ((bits >> 1) & (2**62 - 1)) % limit


def fixed_factor(dataset: FactorDataset, factor: int, count: int, seed: int, draw: int) -> Tensor:
    """`count` independent rows that share the value of one factor, the value itself drawn with a first row.

    Rows whose label of this factor is missing take no part.
    """
    if dataset.is_grid:
        values = dataset.values_of(random_rows(dataset, count, seed, draw))
        values[:, factor] = values[0, factor].clone()
        return dataset.index_of(values)
    column = dataset.values_of(torch.arange(len(dataset), device=dataset.device))[:, factor]
    labelled = torch.nonzero(column >= 0)[:, 0]
    if len(labelled) == 0:
        raise DataError(f"{dataset.name} has no row with a label of {dataset.factor_names[factor]}.")
    first = labelled[_below(len(labelled), 1, seed, draw, "rows", dataset.device)]
    matching = torch.nonzero(column == column[first])[:, 0]
    return matching[_below(len(matching), count, seed, draw, "matching", dataset.device)]


def pairs(dataset: FactorDataset, count: int, differing: int, seed: int, draw: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of rows whose factors agree except for `differing` of them, redrawn at random.

    Returns both rows and the mask [count, factors] of those redrawn (a redrawn factor may keep its value, as in
    locatello2020).
    """
    if not dataset.is_grid:
        raise UsageError(f"Pairs need a complete grid of factors, which {dataset.name} is not.")
    if not 0 < differing <= len(dataset.factors):
        raise UsageError(f"Between 1 and {len(dataset.factors)} factors can differ, not {differing}.")
    first, other = random_rows(dataset, 2 * count, seed, draw).split(count)
    keys = noise.bits(noise.seed_tensor(seed, device=dataset.device), draw, "pairs", (count, len(dataset.factors)))[0]
    changed = keys.argsort(dim=-1).argsort(dim=-1) < differing
    values = torch.where(changed, dataset.values_of(other), dataset.values_of(first))
    return first, dataset.index_of(values), changed
