"""Discrete and continuous factors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unbraid.errors import DataError, SettingError, UsageError, unknown
from unbraid.metrics.arrays import name_factors, to_labels

MAX_DISCRETE_VALUES = 100
"""Number of different fractions above which a factor counts as continuous."""


class FactorColumn(NamedTuple):
    """A factor's class numbers, or real values if `size` is None; `numbers` are for a regression of either."""

    name: str
    values: np.ndarray
    size: int | None
    numbers: np.ndarray


def parse_factors(
    table: np.ndarray, names: Sequence[str] | None = None, continuous: Sequence[str] = (), detect: bool = True
) -> list[FactorColumn]:
    """Return the columns of a table [rows, factors].

    Factors named in `continuous` are real. With `detect`, so are factors that are not all whole numbers and have more
    than 100 values, or more values than half the rows.
    """
    names = name_factors(table.shape[1], names)
    for name in continuous:
        if name not in names:
            raise unknown("factor", name, names, error=SettingError)
    return [
        _parse_real(name, column) if name in continuous or (detect and _looks_real(column)) else _parse(name, column)
        for name, column in zip(names, table.T, strict=True)
    ]


def _looks_real(column: np.ndarray) -> bool:
    if column.dtype.kind != "f" or not np.isfinite(column).all() or (column == np.round(column)).all():
        return False
    return len(np.unique(column)) > min(MAX_DISCRETE_VALUES, len(column) / 2)


def _parse_real(name: str, column: np.ndarray) -> FactorColumn:
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"The continuous factor {name} must hold numbers ({error}).") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"Factor {name} holds NaN or infinite values; leave out the rows without a label.")
    if (numbers == numbers[0]).all():
        raise DataError(f"Factor {name} has only one value in these rows; leave it out.")
    return FactorColumn(name, numbers, None, numbers)


def _parse(name: str, column: np.ndarray) -> FactorColumn:
    numeric = column.dtype.kind in "biuf"
    if numeric and len(column) > MAX_DISCRETE_VALUES and 2 * len(np.unique(column)) > len(column):
        raise UsageError(f"Factor {name} has more values than half the rows: name it in continuous=, or leave it out.")
    labels = to_labels(column, len(column), [name])
    values = labels.values[:, 0]
    return FactorColumn(name, values, labels.sizes[0], column.astype(np.float64) if numeric else values)
