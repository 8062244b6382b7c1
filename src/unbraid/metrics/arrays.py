"""Plain arrays as the metrics take them: codes as float64 [rows, latents], factors as whole numbers [rows, factors]."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, bfloat16, device

from unbraid.errors import DataError, SettingError, UsageError, unknown


class FactorLabels(NamedTuple):
    """Discrete factors: `values` [rows, factors] re-coded from 0 up, and the number of different values of each."""

    values: np.ndarray
    sizes: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def entropy(self) -> np.ndarray:
        """H(v) of each factor, in nats."""
        return np.array([entropy(np.bincount(column)) for column in self.values.T])


def to_numpy(array: Any) -> np.ndarray:
    """A numpy array of anything that is one or can become one; tensors leave their device and their gradient."""
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.float() if array.dtype == bfloat16 else array).numpy()  # numpy has no bfloat16
    try:
        return np.asarray(array)
    except ValueError as error:
        raise UsageError(f"The rows of an array must all have the same length ({error}).") from error


def to_matrix(what: str, array: Any) -> np.ndarray:
    """Finite numbers [rows, columns] as float64."""
    given = to_numpy(array)
    if given.dtype.kind not in "biuf":
        raise UsageError(f"{what} must be numbers, not {given.dtype}.")
    if given.ndim != 2:
        raise UsageError(f"{what} must have the shape [rows, latents], not {list(given.shape)}.")
    if not np.isfinite(given).all():
        raise DataError(f"{what} hold NaN or infinite values.")
    return given.astype(np.float64)


def find_device(codes: Any) -> device:
    """Return the CUDA device that codes are on, or the CPU."""
    return codes.device if isinstance(codes, Tensor) and codes.is_cuda else device("cpu")


def check_at_least(least: int, **settings: int | float) -> None:
    """Refuse settings below `least`."""
    for name, value in settings.items():
        if not value >= least:
            raise SettingError(f"{name} must be at least {least}, not {value}.")


def check_known(kind: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is none of those that are known."""
    if value not in known:
        raise unknown(kind, value, known)


def to_normal_parameters(means: Any, stds: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations [rows, latents] of Normal posteriors, checked, as float64."""
    centres, widths = to_matrix("means", means), to_matrix("stds", stds)
    if widths.shape != centres.shape:
        raise UsageError(f"means have the shape {list(centres.shape)}, but stds {list(widths.shape)}.")
    if not (widths > 0).all():
        raise DataError("stds must all be greater than 0.")
    return centres, widths


def to_labels(factors: Any, rows: int, names: Sequence[str] | None = None, bins: int | None = None) -> FactorLabels:
    """Factors of any discrete type (numbers, words, booleans) as `FactorLabels`; one factor may be a flat array.

    A column of numbers with more than `bins` values, as a continuous factor, is cut into that many bins of about as
    many rows each.
    """
    if bins is not None and bins < 2:
        raise SettingError(f"factor_bins must be at least 2, not {bins}.")
    given = to_factor_table(factors, rows)
    named = name_factors(given.shape[1], names)
    columns = [_recode(name, column, bins) for name, column in zip(named, np.ascontiguousarray(given.T), strict=True)]
    return FactorLabels(np.stack(columns).T, tuple(int(c.max()) + 1 for c in columns), named)


def to_factor_table(factors: Any, rows: int) -> np.ndarray:
    """Factors [rows, factors] of any type; one factor may be a flat array."""
    given = to_numpy(factors)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or given.shape[1] == 0:
        raise UsageError(f"factors must have the shape [rows, factors], not {list(given.shape)}.")
    if len(given) != rows:
        raise UsageError(f"There are {rows} codes, but factors of {len(given)} rows.")
    if rows < 2:
        raise DataError(f"A score needs at least 2 rows, not {rows}.")
    return given


def name_latents(count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given names, or z0, z1, …"""
    return _names("latents", "z", count, names)


def name_factors(count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given names, or v0, v1, …"""
    return _names("factors", "v", count, names)


def _names(what: str, letter: str, count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is not None and len(names) != count:
        raise UsageError(f"There are {count} {what}, but {len(names)} names.")
    return tuple(names) if names is not None else tuple(f"{letter}{k}" for k in range(count))


def choose_factors(names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Columns of the wanted factors, in their own order; None means all."""
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            raise unknown("factor", name, names, error=SettingError)
    if not wanted:
        raise UsageError("At least one factor must be left to score.")
    return [column for column, name in enumerate(names) if name in wanted]


def entropy(counts: np.ndarray) -> float:
    """Entropy of a histogram, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def _recode(name: str, column: np.ndarray, bins: int | None) -> np.ndarray:
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise DataError(f"Factor {name} holds NaN or infinite values; leave out the rows without a label.")
    if _is_small_count(column):
        codes = column.astype(np.int64) - int(column.min())
        present = np.bincount(codes) > 0
        codes = codes if present.all() else (np.cumsum(present) - 1)[codes]
        return _told(name, np.flatnonzero(present), codes, bins)
    try:
        values, codes = np.unique(column, return_inverse=True)
    except TypeError as error:
        raise DataError(f"Factor {name} mixes values that cannot be compared ({error}).") from error
    return _told(name, values, codes.reshape(-1), bins)


def _is_small_count(column: np.ndarray) -> bool:
    """Whether these are whole numbers so close together that counting them is quicker than sorting them."""
    if column.dtype.kind not in "iu" or not len(column):
        return False
    return int(column.max()) - int(column.min()) < 2**16


def _told(name: str, values: np.ndarray, codes: np.ndarray, bins: int | None) -> np.ndarray:
    """The codes, unless there are too few or too many values to score."""
    if len(values) < 2:
        raise DataError(
            f"Factor {name} has one value only in these rows, so nothing can be known about it; leave it out."
        )
    if bins is not None and len(values) > bins and values.dtype.kind in "biuf":
        return _cut(codes, len(values), bins)
    if len(codes) > 100 and 2 * len(values) > len(codes):
        raise UsageError(
            f"Factor {name} has {len(values)} values in {len(codes)} rows; this score needs discrete factors. "
            f"Where it has such a setting, factor_bins=20 cuts a continuous one into 20 values."
        )
    return codes


def _cut(codes: np.ndarray, values: int, bins: int) -> np.ndarray:
    """Ranked values in `bins` bins of about as many rows each; equal values stay together."""
    upto = np.cumsum(np.bincount(codes, minlength=values))
    bin_of_value = np.minimum((upto - 1) * bins // len(codes), bins - 1)
    return np.unique(bin_of_value[codes], return_inverse=True)[1].reshape(-1)
