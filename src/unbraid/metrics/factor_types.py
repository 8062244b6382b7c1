"""Factors of both kinds: classes, and quantities that take any value."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unbraid.errors import DataError, SettingError, UsageError, unknown
from unbraid.metrics.arrays import name_factors, to_labels

MANY_VALUES = 100


class FactorColumn(NamedTuple):
    """A factor's class numbers, or real values where `size` is None; and either as numbers, for a regression."""

    name: str
    values: np.ndarray
    size: int | None
    numbers: np.ndarray


def parse_factors(
    table: np.ndarray, names: Sequence[str] | None = None, continuous: Sequence[str] = (), detect: bool = True
) -> list[FactorColumn]:
    """The columns of a table [rows, factors], each of its kind.

    Those named in `continuous` are quantities, and if `detect`, those of more than 100 values (in few rows: of more
    values than half the rows) that are not all whole numbers.
    """
    named = name_factors(table.shape[1], names)
    for name in continuous:
        if name not in named:
            raise unknown("factor", name, named, error=SettingError)
    return [
        _quantity(name, column) if name in continuous or (detect and _looks_real(column)) else _classes(name, column)
        for name, column in zip(named, table.T, strict=True)
    ]


def _looks_real(column: np.ndarray) -> bool:
    if column.dtype.kind != "f" or not np.isfinite(column).all() or (column == np.round(column)).all():
        return False
    return len(np.unique(column)) > min(MANY_VALUES, len(column) / 2)


def _quantity(name: str, column: np.ndarray) -> FactorColumn:
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"The continuous factor {name} must hold numbers ({error}).") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"Factor {name} holds NaN or infinite values; leave out the rows without a label.")
    if (numbers == numbers[0]).all():
        raise DataError(
            f"Factor {name} has one value only in these rows, so nothing can be known about it; leave it out."
        )
    return FactorColumn(name, numbers, None, numbers)


def _classes(name: str, column: np.ndarray) -> FactorColumn:
    if column.dtype.kind in "biuf" and len(column) > MANY_VALUES and 2 * len(np.unique(column)) > len(column):
        raise UsageError(f"Factor {name} has more values than half the rows: name it in continuous=, or leave it out.")
    labels = to_labels(column, len(column), [name])
    values = labels.values[:, 0]
    return FactorColumn(
        name, values, labels.sizes[0], column.astype(np.float64) if column.dtype.kind in "biuf" else values
    )
