"""Your own table: a CSV, Parquet or NPY file, or a DataFrame, with a line per item and a column per feature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid.data.base import dataset
from unbraid.data.csv_files import check_marks
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.label_csv import make_factor
from unbraid.data.table_columns import Cell, TableColumn, columns_to_json, encode_cells, name_class, parse_number
from unbraid.data.table_files import is_frame, name_source, read_cells
from unbraid.data.table_rows import locate_row
from unbraid.errors import DataError, UsageError, unknown

MAX_CLASSES = 50
"""A column of text with more classes is not taken for a feature."""

LARGE = 100.0
"""Numbers beyond this are named as the cause if training diverges."""

Incomplete = Literal["refuse", "drop"]


@dataclass(frozen=True)
class TableDataset(FactorDataset):
    """Rows of a table as features [n, width], with the columns that they come from.

    `source_rows` [n] are the rows of the whole table (from 0) that were kept, or None if no row was left out.
    """

    columns: tuple[TableColumn, ...] = ()
    source_rows: Tensor | None = None  # not content: the hashes of older runs stay valid

    def _content(self) -> list[Any]:
        return [*super()._content(), self.columns]


@dataset("table", yours=True)
def table(
    *,
    file: str | Path,
    columns: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
    factors: tuple[str, ...] = (),
    standardise: bool = True,
    incomplete: Incomplete = "refuse",
) -> TableDataset:
    """Your own table, a CSV, Parquet or NPY file with a line per item and a column per feature.

    `columns` are the features, by default all except `without` and `factors`, which only scores use. Text becomes
    classes; `classes` names columns of numbers that are classes, too.
    """
    return from_table(
        file,
        columns=columns,
        without=without,
        classes=classes,
        factors=factors,
        standardise=standardise,
        incomplete=incomplete,
    )


def from_table(
    source: Any,
    *,
    columns: Sequence[str] = (),
    without: Sequence[str] = (),
    classes: Sequence[str] = (),
    factors: Sequence[str] = (),
    standardise: bool = True,
    incomplete: Incomplete = "refuse",
    name: str = "table",
) -> TableDataset:
    """Return a table as feature vectors: the path of a CSV, Parquet or NPY file, or a DataFrame.

    Numbers are standardised (mean 0, variance 1 over all rows), text becomes one feature per class. Means, scales and
    classes are stored with a run, which returns rows in the units of the table. `incomplete="drop"` leaves out rows
    with a missing cell, which are refused otherwise.
    """
    where, cells = name_source(source), read_cells(source)
    for wanted in (*columns, *without, *classes, *factors):
        if wanted not in cells:
            raise unknown("column", wanted, cells, of=where)
    used = list(columns) or [each for each in cells if each not in (*without, *factors)]
    if not used:
        raise DataError(f"{where} has no column of features.")
    cells, kept = _leave_out_incomplete(where, {each: cells[each] for each in (*used, *factors)}, used, incomplete)
    rows = list(range(len(cells[used[0]]))) if kept is None else kept.tolist()
    found = tuple(_describe_column(where, each, cells[each], rows, each in classes, standardise) for each in used)
    values, _ = encode_cells(found, {each: cells[each] for each in used}, where)
    named = [_read_factor(where, each, cells[each]) for each in factors]
    table = torch.stack([column for _, column in named], dim=1) if named else None
    pixels = Pixels(values, (values.shape[1],))
    source_name = "DataFrame" if is_frame(source) else where
    factors_found = tuple(factor for factor, _ in named)
    return TableDataset(name, pixels, factors_found, table, source=source_name, columns=found, source_rows=kept)


def _leave_out_incomplete(
    where: str, cells: Mapping[str, list[Cell]], used: Sequence[str], incomplete: Incomplete
) -> tuple[dict[str, list[Cell]], Tensor | None]:
    """Return the rows in which every used cell is known, and their numbers, None if these are all rows.

    Raise if there are others and they are to be refused.
    """
    if incomplete not in ("refuse", "drop"):
        raise unknown("value of incomplete", incomplete, ("refuse", "drop"))
    rows = list(zip(*(cells[name] for name in used), strict=True))
    kept = [row for row, values in enumerate(rows) if None not in values]
    if len(kept) == len(rows):
        return dict(cells), None
    first = next(row for row, values in enumerate(rows) if None in values)
    column = used[rows[first].index(None)]
    count = len(rows) - len(kept)
    lacking = f"{count:,} of {len(rows):,} rows {'lacks' if count == 1 else 'lack'} a cell"
    if incomplete == "refuse" or not kept:
        raise DataError(
            f"{locate_row(where, first)} has no {column}, and {lacking}; train on the others with "
            f"data.incomplete=drop, leave a column out with data.without=[{column}], or train partitioned-mvae, which "
            "takes each column as a modality that may be missing (scale its numbers to a spread near 1 first)."
        )
    return {name: [column[row] for row in kept] for name, column in cells.items()}, torch.tensor(kept, device="cpu")


def _describe_column(
    where: str, name: str, cells: Sequence[Cell], rows: Sequence[int], classes: bool, standardise: bool
) -> TableColumn:
    """Return mean and scale of a column of numbers, or the classes of any other; `rows` are those of the source."""
    numbers = [parse_number(cell) for cell in cells]
    words = [place for place, number in enumerate(numbers) if number is None]
    if not words and not classes:
        return _describe_numbers(name, np.array(numbers, dtype=np.float64), standardise)
    if not classes:
        check_marks(where, name, cells)
    if 0 < len(words) < len(cells) / 2 and not classes:
        bad = words[0]
        raise DataError(
            f"{locate_row(where, rows[bad])}, column {name}: '{cells[bad]}' is not a finite number, unlike most of "
            f"the column; correct it, leave the column out with data.without=[{name}], or set data.classes=[{name}] if "
            "these are classes."
        )
    found = sorted({name_class(cell) for cell in cells}, key=lambda each: (parse_number(each) or 0.0, each))
    if len(found) > MAX_CLASSES or (len(found) == len(cells) and len(cells) > 1):
        raise DataError(
            f"{where}: the column {name} holds {len(found):,} different texts in {len(cells):,} rows, too many for "
            f"classes; leave it out with data.without=[{name}] (without=['{name}'] in from_table)."
        )
    return TableColumn(name, classes=tuple(found))


def _describe_numbers(name: str, numbers: np.ndarray, standardise: bool) -> TableColumn:
    if not standardise:
        return TableColumn(name)
    scale = float(numbers.std())
    constant = scale <= 1e-12 * max(1.0, float(np.abs(numbers).max()))  # rounding, and no variation
    return TableColumn(name, float(numbers.mean()), 1.0 if constant else scale)


def _read_factor(where: str, name: str, cells: Sequence[Cell]) -> tuple[Factor, Tensor]:
    texts = ["" if cell is None else name_class(cell) for cell in cells]
    return make_factor(Path(where), name, texts)


def columns_of(data: FactorDataset) -> tuple[TableColumn, ...]:
    """Return the columns of a table, and nothing for other data."""
    return data.columns if isinstance(data, TableDataset) else ()


def number_rows(data: FactorDataset) -> list[int]:
    """Return the number of each row in its source, from 0: a table may have lost incomplete rows."""
    kept = data.source_rows if isinstance(data, TableDataset) else None
    return list(range(len(data))) if kept is None else kept.tolist()


def describe_columns(data: FactorDataset) -> dict[str, Any]:
    """Return what data.json stores of columns and classes, so that a run needs no data to return rows of a table."""
    facts: dict[str, Any] = {"columns": columns_to_json(columns_of(data))} if columns_of(data) else {}
    classes = {name: list(modality.classes) for name, modality in data.modalities.items() if modality.classes}
    return {**facts, **({"classes": classes} if classes else {})}


def explain_constant_columns(data: FactorDataset) -> str:
    """Return what to do about columns of a table that have one value in all rows, or nothing if there are none."""
    constant, start = [], 0
    for column in columns_of(data):
        stored = getattr(data.pixels, "stored", None)
        same = isinstance(stored, Tensor) and bool((stored[:, start] == stored[0, start]).all())
        if len(column.classes) == 1 or (same and not column.classes):
            constant.append(column.name)
        start += column.width
    if not constant or len(data) < 2:
        return ""
    listed = ", ".join(constant)
    which = f"The column {listed} has" if len(constant) == 1 else f"The columns {listed} each have"
    return (
        f"{which} the same value in all rows, from which nothing can be learned; leave "
        f"{'it' if len(constant) == 1 else 'them'} out with data.without=[{','.join(constant)}]."
    )


def explain_scale(data: FactorDataset) -> str:
    """Return what to do about vectors whose numbers are far larger than 1, or nothing if there are none."""
    for name, modality in data.modalities.items():
        stored = getattr(modality.values, "stored", None)
        if modality.kind != "vector" or not isinstance(stored, Tensor) or not stored.is_floating_point():
            continue
        low, high = stored.min(0).values, stored.max(0).values
        column = int(torch.maximum(high, -low).argmax())
        if max(float(high[column]), -float(low[column])) > LARGE:
            where = f"column {column}" if name == "x" else f"{name}"
            as_table = (
                "train on a table (data=table.csv, or unbraid.data.from_table), which does so, or scale them yourself"
            )
            by_hand = (
                f"subtract the mean of each column of numbers in {data.source}, and divide by its standard deviation"
            )
            return (
                f"The numbers of the data are too large: those of {where} go from {float(low[column]):.4g} to "
                f"{float(high[column]):.4g}, and a model expects a mean near 0 and a spread near 1. Standardise them: "
                f"{by_hand if len(data.modalities) > 1 else as_table}."
            )
    return ""


def check_rows_given(columns: Sequence[TableColumn], known: Tensor, where: str) -> None:
    """Raise if a cell is missing where all are needed."""
    if bool(known.all()):
        return
    row, feature = (int(place) for place in (~known).nonzero()[0])
    names = [column.name for column in columns for _ in range(column.width)]
    raise UsageError(f"{locate_row(where, row)} has no {names[feature]}; fill the table first with unbraid complete.")
