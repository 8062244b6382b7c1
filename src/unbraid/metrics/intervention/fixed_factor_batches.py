r"""Interventions on one factor: batches and pairs of rows that share its value.

An interventional score draws a factor k uniformly and then rows with one common value of k, while the other factors
vary as they do in the data. The rows are the population, be they a complete grid or not: values are drawn as often as
they occur (uniformly in a grid), rows with replacement. A value that only one row has is never drawn, since nothing can
vary there.

Rows are sorted by value once per factor, so a draw is a random position in a slice and needs no loop.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import FactorLabels, RealFactorError, name_factors, to_factor_table, to_labels
from unbraid.metrics.content_cache import ContentCache

MAX_GATHERED_VALUES = {"cpu": 2**16, "cuda": 2**26}
"""Codes that fit a core's cache, or a small part of a GPU's memory."""


class FixedFactorBatches(NamedTuple):
    """The fixed factor of each batch [batches] and its rows [batches, batch]."""

    factor: np.ndarray
    rows: np.ndarray


class FixedFactorPairs(NamedTuple):
    """The common factor of each batch of pairs [batches] and the rows of both members [batches, batch]."""

    factor: np.ndarray
    first: np.ndarray
    second: np.ndarray


class Population:
    """Rows sorted by factor and value, to draw batches and pairs from."""

    def __init__(self, labels: FactorLabels) -> None:
        self.labels, self.values = labels, labels.values
        shape = len(labels.sizes), max(labels.sizes)
        self.start, self.count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self.begin, self.length = np.zeros(shape[0], dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
        slices, begin = [], 0
        for k, (name, size) in enumerate(zip(labels.names, labels.sizes, strict=True)):
            order, count = sort_rows(labels.values[:, k], size)
            shared = count > 1
            if not shared.any():
                raise DataError(f"No two rows share a value of factor {name}, so it cannot be held fixed.")
            slices.append(order[np.repeat(shared, count)])
            count = np.where(shared, count, 0)
            self.count[k, :size], self.start[k, :size] = count, begin + count.cumsum() - count
            self.begin[k], self.length[k] = begin, len(slices[-1])
            begin += len(slices[-1])
        self.rows = np.concatenate(slices)

    def draw_batches(self, rng: np.random.Generator, count: int, batch: int) -> FixedFactorBatches:
        """Draw `count` batches, each with one factor fixed at one value."""
        factor = rng.integers(len(self.begin), size=count)
        value = self.values[self._draw_rows(rng, factor), factor]
        return FixedFactorBatches(factor, self._draw_equal(rng, factor[:, None], value[:, None], (count, batch)))

    def draw_pairs(self, rng: np.random.Generator, count: int, batch: int) -> FixedFactorPairs:
        """Draw `count` batches of pairs; the rows of a pair share a value of the batch's factor."""
        factor = rng.integers(len(self.begin), size=count)
        spread = np.repeat(factor[:, None], batch, axis=1)
        first = self._draw_rows(rng, spread)
        return FixedFactorPairs(factor, first, self._draw_equal(rng, spread, self.values[first, spread], first.shape))

    def _draw_rows(self, rng: np.random.Generator, factor: np.ndarray) -> np.ndarray:
        """Draw a row for each factor, among those that share its value with another row."""
        return self.rows[self.begin[factor] + (rng.random(factor.shape) * self.length[factor]).astype(np.int64)]

    def _draw_equal(
        self, rng: np.random.Generator, factor: np.ndarray, value: np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        """Draw a row for each factor and value."""
        offset = (rng.random(shape) * self.count[factor, value]).astype(np.int64)
        return self.rows[self.start[factor, value] + offset]


_POPULATIONS = ContentCache[Population](entries=2)
"""Those of the factors, and of the factors in another order, which show the level of chance; 50 MB each for sprites."""


def sort_rows(column: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in the order of their values 0 … size-1, and the number of rows with each value."""
    small = column.astype(np.uint16) if size <= 2**16 else column  # 16 bits are sorted by radix
    return np.argsort(small, kind="stable").astype(np.int32), np.bincount(column, minlength=size)


def read_fixable_factors(factors: Any, rows: int, names: Sequence[str] | None = None) -> FactorLabels:
    """Return discrete factors as `FactorLabels`; refuse continuous ones, whose values rows do not share."""
    table = to_factor_table(factors, rows)
    if table.dtype.kind == "f" and np.isfinite(table).all():
        for name, column in zip(name_factors(table.shape[1], names), table.T, strict=True):
            different = len(np.unique(column))
            if different > max(10, rows / 2):
                raise RealFactorError(
                    f"Factor {name} is continuous ({different} values in {rows} rows), so it cannot be held fixed."
                )
    return to_labels(table, rows, names)


def gather_codes(codes: Tensor, rows: np.ndarray) -> Iterator[Tensor]:
    """Yield the codes [some batches, batch, latents] of rows [batches, batch]."""
    batch, latents = rows.shape[1], codes.shape[1]
    step = max(1, MAX_GATHERED_VALUES.get(codes.device.type, 2**16) // max(1, batch * latents))
    for part in torch.from_numpy(rows).to(codes.device).split(step):
        yield codes.index_select(0, part.flatten()).view(len(part), batch, latents)


def read_population(score: str, factors: Any, rows: int, names: Sequence[str] | None = None) -> Population:
    """Return the population of at least two discrete factors, for a score that predicts which of them is fixed.

    Models that are scored on the same factors share it.
    """
    table = to_factor_table(factors, rows)
    if table.shape[1] < 2:
        raise UsageError(f"The {score} score predicts which factor is fixed, so it needs at least 2 factors.")

    def build() -> Population:
        return Population(read_fixable_factors(table, rows, names))

    if table.dtype.kind == "O":  # the bytes of objects are their addresses
        return build()
    return _POPULATIONS.get([table, np.array(name_factors(table.shape[1], names))], build)
