"""Observations that a user hands to a finished run: pictures, a folder, a table, an array or its file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.data.base import expand_user
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors
from unbraid.data.images import from_array
from unbraid.data.picture_files import SUFFIXES, Mode, list_pictures as list_folder, read_all, read_picture
from unbraid.data.table_columns import TableColumn, encode_cells, parse_number
from unbraid.data.table_files import TABLES, is_frame, name_source, read_cells
from unbraid.data.table_rows import locate_row
from unbraid.data.tables import TableDataset, check_rows_given, number_rows
from unbraid.data.unreadable_pictures import Unreadable, leave_out_unreadable, name_unreadable
from unbraid.errors import DataError, UsageError
from unbraid.types import Shape


class GivenRows(NamedTuple):
    """Observations as a data set, and the name of each: its `file`, or the number of its `row` (from 0)."""

    data: FactorDataset
    names: list[str]
    heading: str


def read_rows(
    given: Any, shape: Shape, columns: Sequence[TableColumn] = (), unreadable: Unreadable = "refuse"
) -> GivenRows:
    """Return observations of a shape; `columns` are those of the table that a run was trained on.

    A path is a folder of pictures, a picture, a table (.csv, .tsv, .parquet) or an array (.npy); a list of paths are
    pictures. Pictures become grey or RGB as the shape says, and the central square of each is resized. Numbers of a
    table are in its own units. Pictures of a folder that cannot be read are refused, or left out (`skip`).
    """
    if isinstance(given, FactorDataset):
        return _check_shape(_number(given), shape)
    if isinstance(given, (str, Path)):
        path = expand_user(given)
        if path.suffix.lower() == ".npy":
            with explain_errors(path, "a NPY file"):
                given = np.load(path, allow_pickle=False)
        elif path.suffix.lower() not in TABLES:
            return _read_folder(path, shape, unreadable)
    if isinstance(given, (list, tuple)) and given and all(isinstance(each, (str, Path)) for each in given):
        paths = [expand_user(each) for each in given]
        return _read_pictures(paths, [str(each) for each in given], shape)
    if is_frame(given) or isinstance(given, (str, Path)):
        if len(shape) == 3 and not columns:
            raise UsageError("This run takes pictures, not the rows of a table; pass a folder, a picture or an array.")
        return _check_shape(_number(_read_table(given, columns)), shape)
    if columns and np.ndim(given) == 2:
        return _check_shape(_number(_standardise(np.asarray(given), columns)), shape)
    return _check_shape(_number(from_array(given, name="images")), shape)


def _number(data: FactorDataset) -> GivenRows:
    return GivenRows(data, [str(row) for row in number_rows(data)], "row")


def _check_shape(rows: GivenRows, shape: Shape) -> GivenRows:
    if rows.data.shape != shape:
        raise UsageError(f"This run takes observations of shape {shape}, not {rows.data.shape}.")
    return rows


def list_pictures(path: Path, unreadable: Unreadable = "refuse", tell: bool = False) -> tuple[list[Path], list[str]]:
    """Return the pictures below a folder in the order of their paths, or one picture, and their names.

    `unreadable="skip"` leaves out those of a folder that cannot be read, and `tell` announces them.
    """
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return [path], [path.name]
    if not path.is_dir():
        raise DataError(f"{path} is neither a folder, nor a picture, a table (.csv, .parquet) or an array (.npy).")
    names = list_folder(path)
    if not names:
        raise DataError(f"{path} holds no pictures ({', '.join(sorted(SUFFIXES))}).")
    names = leave_out_unreadable(path, names, unreadable, tell)
    return [path / name for name in names], names


def _read_folder(path: Path, shape: Shape, unreadable: Unreadable) -> GivenRows:
    """Return the pictures below a folder, or one picture."""
    paths, names = list_pictures(path, unreadable, tell=True)
    if not path.is_dir():
        return _read_pictures(paths, names, shape)
    with name_unreadable(path, names, skippable=False):
        return _read_pictures(paths, names, shape)


def _read_pictures(paths: Sequence[Path], names: list[str], shape: Shape) -> GivenRows:
    if len(shape) != 3:
        raise UsageError(f"This run takes rows of {shape[0]} numbers, not pictures; pass a table or an array.")
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path} does not exist.")
    mode: Mode = "L" if shape[0] == 1 else "RGB"
    size = shape[1] if shape[1] == shape[2] else None
    named = [(path, str(path)) for path in paths]
    stored = read_all(named, lambda picture: read_picture(*picture, mode, size), "pictures")
    data = FactorDataset("pictures", Pixels(stored, tuple(stored.shape[1:])))
    return _check_shape(GivenRows(data, names, "file"), shape)


def _read_table(given: Any, columns: Sequence[TableColumn]) -> FactorDataset:
    where, cells = name_source(given), read_cells(given)
    if columns:
        values, known = encode_cells(columns, cells, where)
        check_rows_given(columns, known, where)
        return TableDataset("table", Pixels(values, (values.shape[1],)), columns=tuple(columns))
    numbers = [[parse_number(cell) for cell in column] for column in cells.values()]
    for name, column in zip(cells, numbers, strict=True):
        if None in column:
            row = column.index(None)
            problem = (
                "the cell is empty" if cells[name][row] is None else f"'{cells[name][row]}' is not a finite number"
            )
            raise DataError(f"{locate_row(where, row)}, column {name}: {problem}.")
    return from_array(np.array(numbers, dtype=np.float32).T, name=where)


def _standardise(array: np.ndarray, columns: Sequence[TableColumn]) -> FactorDataset:
    """Return rows [n, features] in the units of a table as the model sees them."""
    mean = np.array([column.mean for column in columns for _ in range(column.width)])
    scale = np.array([column.scale for column in columns for _ in range(column.width)])
    if array.shape[1] != len(mean):
        raise UsageError(f"This run takes rows of {len(mean)} features, not {array.shape[1]}.")
    values = torch.from_numpy(((array - mean) / scale).astype(np.float32))
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).any(1).nonzero()[0])
        raise DataError(f"Row {row} (from 0) has NaN or infinite values; fill them first with run.complete.")
    return TableDataset("table", Pixels(values, (values.shape[1],)), columns=tuple(columns))
