r"""Interventions on one factor, out of any table of factors: batches and pairs of rows that agree in its value.

A score that intervenes draws a factor k uniformly and then rows with one common value of it, while the others vary as
they do in the data. The given rows are the population, whether they are a complete grid or not: a value is drawn as
often as it occurs (uniformly in a grid), rows are drawn with repetition. A value that one row alone has says nothing
about the others and is never drawn.

Rows are sorted by value once per factor, so a draw is a random position in a slice and needs no loop.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import FactorLabels, name_factors, to_factor_table, to_labels, to_matrix

CHUNK_VALUES = {"cpu": 2**16, "cuda": 2**26}
"""Codes gathered at a time: what fits a core's cache, or a small part of a GPU's memory."""


class Batches(NamedTuple):
    """The fixed factor of each batch [batches] and its rows [batches, batch]."""

    factor: np.ndarray
    rows: np.ndarray


class Pairs(NamedTuple):
    """The common factor of each batch of pairs [batches] and the rows of both sides [batches, batch]."""

    factor: np.ndarray
    first: np.ndarray
    second: np.ndarray


class Population:
    """Rows by factor and value, ready to be drawn from."""

    def __init__(self, labels: FactorLabels) -> None:
        self.values = labels.values
        shape = len(labels.sizes), max(labels.sizes)
        self.start, self.count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self.begin, self.length = np.zeros(shape[0], dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
        slices, begin = [], 0
        for k, (name, size) in enumerate(zip(labels.names, labels.sizes, strict=True)):
            order, count = sorted_rows(labels.values[:, k], size)
            shared = count > 1
            if not shared.any():
                raise DataError(f"No two rows share a value of factor {name}, so it cannot be held fixed.")
            slices.append(order[np.repeat(shared, count)])
            count = np.where(shared, count, 0)
            self.count[k, :size], self.start[k, :size] = count, begin + count.cumsum() - count
            self.begin[k], self.length[k] = begin, len(slices[-1])
            begin += len(slices[-1])
        self.rows = np.concatenate(slices)

    def batches(self, rng: np.random.Generator, count: int, batch: int) -> Batches:
        """`count` batches, each with one factor fixed at one value."""
        factor = rng.integers(len(self.begin), size=count)
        value = self.values[self._any(rng, factor), factor]
        return Batches(factor, self._alike(rng, factor[:, None], value[:, None], (count, batch)))

    def pairs(self, rng: np.random.Generator, count: int, batch: int) -> Pairs:
        """`count` batches of pairs: the rows of a pair agree in the batch's factor, each pair in a value of its own."""
        factor = rng.integers(len(self.begin), size=count)
        spread = np.repeat(factor[:, None], batch, axis=1)
        first = self._any(rng, spread)
        return Pairs(factor, first, self._alike(rng, spread, self.values[first, spread], first.shape))

    def _any(self, rng: np.random.Generator, factor: np.ndarray) -> np.ndarray:
        """A row for each factor, out of those that share its value with another row."""
        return self.rows[self.begin[factor] + (rng.random(factor.shape) * self.length[factor]).astype(np.int64)]

    def _alike(
        self, rng: np.random.Generator, factor: np.ndarray, value: np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        """A row for each factor and value."""
        step = (rng.random(shape) * self.count[factor, value]).astype(np.int64)
        return self.rows[self.start[factor, value] + step]


def sorted_rows(column: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the order of their values 0 … size-1, and how many have each value."""
    small = column.astype(np.uint16) if size <= 2**16 else column  # 16 bits are sorted by radix
    return np.argsort(small, kind="stable").astype(np.int32), np.bincount(column, minlength=size)


def fixable_factors(factors: Any, rows: int, names: Sequence[str] | None = None) -> FactorLabels:
    """Discrete factors as `FactorLabels`; one whose values hardly repeat cannot be held fixed."""
    given = to_factor_table(factors, rows)
    if given.dtype.kind == "f" and np.isfinite(given).all():
        for name, column in zip(name_factors(given.shape[1], names), given.T, strict=True):
            different = len(np.unique(column))
            if different > max(10, rows / 2):
                raise UsageError(
                    f"Factor {name} is continuous ({different} values in {rows} rows), so hardly any share one; "
                    "cut it into factor bins (factor_bins=…)."
                )
    return to_labels(given, rows, names)


def code_tensor(codes: Any) -> Tensor:
    """Finite codes [rows, latents] as float64, on their GPU if they are on one."""
    if not (isinstance(codes, Tensor) and codes.is_cuda):
        return torch.from_numpy(np.ascontiguousarray(to_matrix("codes", codes)))
    if codes.ndim != 2:
        raise UsageError(f"codes must have the shape [rows, latents], not {list(codes.shape)}.")
    if not codes.isfinite().all():
        raise DataError("codes hold NaN or infinite values.")
    return codes.detach().double().contiguous()


def gathered(codes: Tensor, rows: np.ndarray) -> Iterator[Tensor]:
    """Codes [some, batch, latents] of rows [batches, batch], some batches at a time."""
    batch, latents = rows.shape[1], codes.shape[1]
    step = max(1, CHUNK_VALUES.get(codes.device.type, 2**16) // max(1, batch * latents))
    for part in torch.from_numpy(rows).to(codes.device).split(step):
        yield codes.index_select(0, part.flatten()).view(len(part), batch, latents)


def several_factors(score: str, factors: Any, rows: int, names: Sequence[str] | None = None) -> FactorLabels:
    """At least two discrete factors, of a score that asks which of them was held fixed."""
    labels = fixable_factors(factors, rows, names)
    if len(labels.names) < 2:
        raise UsageError(f"The {score} score asks which factor was held fixed, so it needs at least 2 factors.")
    return labels
