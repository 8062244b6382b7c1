"""Checked arrays: codes as float64 [rows, latents], factors as class numbers [rows, factors]."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, bfloat16, device

from unbraid.errors import DataError, SettingError, UsageError, unknown

FACTOR_BINS = "factor_bins"
"""Setting of scores that cut real factors into bins."""

MAX_COUNTED_SPAN = 2**16
"""Span of whole numbers up to which counting them is faster than sorting them."""


@dataclass(frozen=True, eq=False)
class FactorLabels:
    """Discrete factors: `values` [rows, factors] numbered from 0, and the number of values of each factor.

    What is computed from them is kept, since the models of a sweep share the labels of their rows.
    """

    values: np.ndarray
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    copies: dict[device, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def entropy(self) -> np.ndarray:
        """H(v) of each factor, in nats."""
        return np.array([entropy(np.bincount(column)) for column in self.values.T])

    def on(self, place: device) -> Tensor:
        """Return the values as a tensor on a device."""
        if place not in self.copies:
            self.copies[place] = torch.as_tensor(self.values, device=place)
        return self.copies[place]

    def select(self, rows: np.ndarray) -> "FactorLabels":
        """Return the labels of some rows, with the numbers that they have in all rows."""
        return FactorLabels(self.values[rows], self.sizes, self.names)


def to_numpy(array: Any) -> np.ndarray:
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.float() if array.dtype == bfloat16 else array).numpy()  # numpy has no bfloat16
    try:
        return np.asarray(array)
    except ValueError as error:
        raise UsageError(f"The rows of an array must all have the same length ({error}).") from error


def to_matrix(name: str, array: Any) -> np.ndarray:
    """Return finite numbers [rows, columns] as float64; `name` is for the errors."""
    values = to_numpy(array)
    if values.dtype.kind not in "biuf":
        raise UsageError(f"{name} must be numbers, not {values.dtype}.")
    if values.ndim != 2:
        raise UsageError(f"{name} must have the shape [rows, latents], not {list(values.shape)}.")
    if not np.isfinite(values).all():
        raise DataError(f"{name} hold NaN or infinite values.")
    return values.astype(np.float64)


def find_device(codes: Any) -> device:
    """Return the CUDA device that codes are on, or the CPU."""
    return codes.device if isinstance(codes, Tensor) and codes.is_cuda else device("cpu")


def check_at_least(minimum: int, **settings: int | float) -> None:
    for name, value in settings.items():
        if not value >= minimum:
            raise SettingError(f"{name} must be at least {minimum}, not {value}.")


def check_known(kind: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise unknown(kind, value, known)


def to_tensor(name: str, array: Any) -> Tensor:
    """Return finite numbers [rows, columns] as a float64 tensor, on its GPU if the array is on one."""
    if not (isinstance(array, Tensor) and array.is_cuda and array.ndim == 2 and bool(array.isfinite().all())):
        return torch.from_numpy(np.ascontiguousarray(to_matrix(name, array)))  # says what is wrong with others
    return array.detach().double().contiguous()


def to_normal_tensors(means: Any, stds: Any) -> tuple[Tensor, Tensor]:
    """Return the means and standard deviations [rows, latents] of Normal posteriors as float64 tensors."""
    centres = to_tensor("means", means)
    widths = to_tensor("stds", stds).to(centres.device)
    if widths.shape != centres.shape:
        raise UsageError(f"means have the shape {list(centres.shape)}, but stds {list(widths.shape)}.")
    if not bool((widths > 0).all()):
        raise DataError("stds must all be greater than 0.")
    return centres, widths


class RealFactorError(UsageError):
    """A score of discrete factors met a real one: the `problem`, and the scores that can cut it into bins."""

    def __init__(self, problem: str) -> None:
        from unbraid.metrics.score import metric  # which knows all scores once they are registered

        able = [name for name in metric if FACTOR_BINS in metric[name].settings]
        super().__init__(f"{problem} {FACTOR_BINS}=20 cuts it into 20 bins; {' and '.join(able)} have this setting.")
        self.problem = problem


def to_labels(factors: Any, rows: int, names: Sequence[str] | None = None, bins: int | None = None) -> FactorLabels:
    """Return discrete factors (numbers, words, booleans) as `FactorLabels`; one factor may be a flat array.

    A column with more than `bins` different numbers, such as a continuous factor, is cut into `bins` bins with about
    equally many rows.
    """
    if bins is not None and bins < 2:
        raise SettingError(f"{FACTOR_BINS} must be at least 2, not {bins}.")
    if isinstance(factors, FactorLabels) and bins is None and len(factors.values) == rows:
        return factors
    table = to_factor_table(factors, rows)
    names = name_factors(table.shape[1], names)
    columns = [_recode(name, column, bins) for name, column in zip(names, np.ascontiguousarray(table.T), strict=True)]
    return FactorLabels(np.stack(columns).T, tuple(int(c.max()) + 1 for c in columns), names)


def to_factor_table(factors: Any, rows: int) -> np.ndarray:
    """Return factors of any type as [rows, factors]; one factor may be a flat array."""
    table = to_numpy(factors)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] == 0:
        raise UsageError(f"factors must have the shape [rows, factors], not {list(table.shape)}.")
    if len(table) != rows:
        raise UsageError(f"codes have {rows} rows, and factors {len(table)}.")
    if rows < 2:
        raise DataError(f"A score needs at least 2 rows, not {rows}.")
    return table


def _name_columns(kind: str, letter: str, count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is not None and len(names) != count:
        raise UsageError(f"There are {count} {kind}, but {len(names)} names.")
    return tuple(names) if names is not None else tuple(f"{letter}{k}" for k in range(count))


name_latents, name_factors = partial(_name_columns, "latents", "z"), partial(_name_columns, "factors", "v")
"""Functions of a count and names that return the names, or z0, z1, … and v0, v1, … if they are None."""


def choose_factors(names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Return the columns of the wanted factors, in the order of `names`; None means all."""
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            raise unknown("factor", name, names, error=SettingError)
    if not wanted:
        raise UsageError("Choose at least one factor to score.")
    return [column for column, name in enumerate(names) if name in wanted]


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of a histogram, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def _recode(name: str, column: np.ndarray, bins: int | None) -> np.ndarray:
    """Return the class numbers of one factor, from 0."""
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise DataError(f"Factor {name} holds NaN or infinite values; leave out the rows without a label.")
    whole = column.dtype.kind in "iu" and len(column) > 0
    if whole and int(column.max()) - int(column.min()) < MAX_COUNTED_SPAN:
        codes = column.astype(np.int64) - int(column.min())
        present = np.bincount(codes) > 0
        codes, size = codes if present.all() else (np.cumsum(present) - 1)[codes], int(present.sum())
    else:
        try:
            values, codes = np.unique(column, return_inverse=True)
        except TypeError as error:
            raise DataError(f"Factor {name} mixes values that cannot be compared ({error}).") from error
        codes, size = codes.reshape(-1), len(values)
    if size < 2:
        raise DataError(f"Factor {name} has only one value in these rows; leave it out.")
    if bins is not None and size > bins and column.dtype.kind in "biuf":
        return _cut_into_bins(codes, size, bins)
    if len(codes) > 100 and 2 * size > len(codes):
        raise RealFactorError(
            f"Factor {name} has {size} values in {len(codes)} rows, but this score needs discrete factors."
        )
    return codes


def _cut_into_bins(codes: np.ndarray, values: int, bins: int) -> np.ndarray:
    """Return bins with about equally many rows; equal values share a bin."""
    upto = np.cumsum(np.bincount(codes, minlength=values))
    bin_of_value = np.minimum((upto - 1) * bins // len(codes), bins - 1)
    return np.unique(bin_of_value[codes], return_inverse=True)[1].reshape(-1)
