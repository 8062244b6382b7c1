"""Columns of a table as a model sees them: standardised numbers, and classes as one number each.

A number x becomes (x - mean) / scale. A run stores mean, scale and classes of each column in its data.json, so that
everything it returns is in the units of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.data.csv_files import explain_unclear_mark
from unbraid.data.table_rows import locate_row
from unbraid.errors import DataError, unknown

Cell = str | float | None
"""A cell of a table: text, a number, or None if it is missing."""

DIGITS = 7
"""Significant digits of a number that a table is filled with."""


@dataclass(frozen=True)
class TableColumn:
    """A column of numbers with their mean and scale, or of text with its classes."""

    name: str
    mean: float = 0.0
    scale: float = 1.0
    classes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of features that a model sees of this column."""
        return len(self.classes) or 1

    @property
    def features(self) -> list[str]:
        """Names of the features: that of the column, or COLUMN=CLASS for each class."""
        return [f"{self.name}={each}" for each in self.classes] or [self.name]


def list_features(columns: Sequence[TableColumn]) -> list[str]:
    """Return the names of all features of a row."""
    return [feature for column in columns for feature in column.features]


def encode_cells(
    columns: Sequence[TableColumn], cells: Mapping[str, Sequence[Cell]], source: str
) -> tuple[Tensor, Tensor]:
    """Return features [rows, width] of cells by column, and a mask [rows, width] of those that are known.

    A column that `cells` lacks is missing throughout. Features of a missing cell are 0: the mean, or no class.
    """
    rows = {len(column) for column in cells.values()}
    if not rows or not any(column.name in cells for column in columns):
        raise unknown("table", source, [column.name for column in columns], of="these columns")
    count = rows.pop()
    parts = [_encode_column(column, cells.get(column.name) or [None] * count, source) for column in columns]
    values, known = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(known)


def _encode_column(column: TableColumn, cells: Sequence[Cell], source: str) -> tuple[np.ndarray, np.ndarray]:
    known = np.array([cell is not None for cell in cells])
    if column.classes:
        places = {name: place for place, name in enumerate(column.classes)}
        values = np.zeros((len(cells), column.width))
        for row, cell in enumerate(cells):
            if cell is None:
                continue
            if name_class(cell) not in places:
                raise unknown("class", name_class(cell), column.classes, of=f"column {column.name} in {source}")
            values[row, places[name_class(cell)]] = 1.0
    else:
        numbers = [0.0 if cell is None else parse_number(cell) for cell in cells]
        for row, number in enumerate(numbers):
            if number is None:
                where = f"{locate_row(source, row)}, column {column.name}"
                advice = explain_unclear_mark(cells[row])
                raise DataError(f"{where}: '{cells[row]}' is not a finite number{advice and '; '}{advice}.")
        values = (np.array(numbers, dtype=np.float64)[:, None] - column.mean) / column.scale
        values[~known] = 0.0
    return values, np.repeat(known[:, None], column.width, axis=1)


def restore(columns: Sequence[TableColumn], features: Tensor) -> Tensor:
    """Return features [..., width] in the units of the table; those of classes stay as they are."""
    mean = [column.mean for column in columns for _ in range(column.width)]
    scale = [column.scale for column in columns for _ in range(column.width)]
    like = {"dtype": torch.float64, "device": features.device}
    return (features.double() * torch.tensor(scale, **like) + torch.tensor(mean, **like)).to(features.dtype)


def to_cells(columns: Sequence[TableColumn], restored: Tensor) -> dict[str, list[Cell]]:
    """Return features [rows, width] in the units of the table as cells by column: numbers, or the likeliest class."""
    cells: dict[str, list[Cell]] = {}
    for column, part in zip(columns, restored.split([column.width for column in columns], -1), strict=True):
        if column.classes:
            cells[column.name] = [column.classes[place] for place in part.argmax(-1).tolist()]
        else:
            cells[column.name] = [float(f"{number:.{DIGITS}g}") for number in part[:, 0].tolist()]
    return cells


def columns_to_json(columns: Sequence[TableColumn]) -> list[dict[str, Any]]:
    numbers = [{"name": c.name, "mean": c.mean, "scale": c.scale} if not c.classes else None for c in columns]
    return [
        number or {"name": column.name, "classes": list(column.classes)}
        for column, number in zip(columns, numbers, strict=True)
    ]


def columns_from_json(stored: Sequence[Mapping[str, Any]]) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(each["name"], each.get("mean", 0.0), each.get("scale", 1.0), tuple(each.get("classes", ())))
        for each in stored
    )


def parse_number(cell: Cell) -> float | None:
    """Return a cell as a finite number, or None if it is not one."""
    try:
        number = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if abs(number) <= np.finfo(np.float32).max else None  # NaN is refused, too


def name_class(cell: Cell) -> str:
    """Return the name of a class; numbers have one name however they are written, as 1 and 1.0."""
    number = parse_number(cell) if isinstance(cell, (int, float)) else None
    return str(int(number)) if number is not None and number.is_integer() else str(cell)
