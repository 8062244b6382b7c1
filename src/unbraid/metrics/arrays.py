"""Plain arrays as the metrics take them: codes as float64 [rows, latents], factors as whole numbers [rows, factors]."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, bfloat16

from unbraid.errors import DataError, UsageError, unknown


class Labels(NamedTuple):
    """Discrete factors: `values` [rows, factors] re-coded from 0 up, and the number of different values of each."""

    values: np.ndarray
    sizes: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def entropy(self) -> np.ndarray:
        """H(v) of each factor, in nats."""
        return np.array([entropy(np.bincount(column)) for column in self.values.T])


def plain(array: Any) -> np.ndarray:
    """A numpy array of anything that is one or can become one; tensors leave their device and their gradient."""
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.float() if array.dtype == bfloat16 else array).numpy()  # numpy has no bfloat16
    try:
        return np.asarray(array)
    except ValueError as error:
        raise UsageError(f"The rows of an array must all have the same length ({error}).") from error


def real_matrix(what: str, array: Any) -> np.ndarray:
    """Finite numbers [rows, columns] as float64."""
    given = plain(array)
    if given.dtype.kind not in "biuf":
        raise UsageError(f"{what} must be numbers, not {given.dtype}.")
    if given.ndim != 2:
        raise UsageError(f"{what} must have the shape [rows, latents], not {list(given.shape)}.")
    if not np.isfinite(given).all():
        raise DataError(f"{what} hold NaN or infinite values.")
    return given.astype(np.float64)


def label_matrix(factors: Any, rows: int, names: Sequence[str] | None = None) -> Labels:
    """Factors of any discrete type (numbers, words, booleans) as `Labels`; one factor may be a flat array."""
    given = plain(factors)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or given.shape[1] == 0:
        raise UsageError(f"factors must have the shape [rows, factors], not {list(given.shape)}.")
    if len(given) != rows:
        raise UsageError(f"There are {rows} codes, but factors of {len(given)} rows.")
    if rows < 2:
        raise DataError(f"A score needs at least 2 rows, not {rows}.")
    named = tuple(names) if names is not None else tuple(f"v{k}" for k in range(given.shape[1]))
    if len(named) != given.shape[1]:
        raise UsageError(f"There are {given.shape[1]} factors, but {len(named)} names.")
    columns = [_recode(name, column) for name, column in zip(named, given.T, strict=True)]
    return Labels(np.stack(columns, axis=1), tuple(int(c.max()) + 1 for c in columns), named)


def latent_names(count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """The given names, or z0, z1, …"""
    if names is not None and len(names) != count:
        raise UsageError(f"There are {count} latents, but {len(names)} names.")
    return tuple(names) if names is not None else tuple(f"z{j}" for j in range(count))


def chosen_factors(names: Sequence[str], wanted: Sequence[str] | None) -> list[int]:
    """Columns of the wanted factors, in their own order; None means all."""
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            raise unknown("factor", name, names)
    if not wanted:
        raise UsageError("At least one factor must be left to score.")
    return [column for column, name in enumerate(names) if name in wanted]


def entropy(counts: np.ndarray) -> float:
    """Entropy of a histogram, in nats."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def _recode(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise DataError(f"Factor {name} holds NaN or infinite values.")
    try:
        values, codes = np.unique(column, return_inverse=True)
    except TypeError as error:
        raise DataError(f"Factor {name} mixes values that cannot be compared ({error}).") from error
    if len(values) < 2:
        raise DataError(
            f"Factor {name} has one value only in these rows, so nothing can be known about it; leave it out."
        )
    if len(column) > 100 and 2 * len(values) > len(column):
        raise UsageError(
            f"Factor {name} has {len(values)} values in {len(column)} rows; this score needs discrete factors."
        )
    return codes.reshape(-1)
