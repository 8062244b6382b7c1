"""Cells of a table from a CSV, Parquet or NPY file, or from a DataFrame, by column.

DataFrames are recognised by what they can do, so that pandas and polars need not be installed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unbraid.data.base import expand_user
from unbraid.data.csv_files import MISSING, CsvForm, read_csv
from unbraid.data.csv_modalities import check_exists, read_table
from unbraid.data.file_formats import explain_errors
from unbraid.data.table_columns import Cell
from unbraid.errors import DataError
from unbraid.extras import import_extra

TEXT_TABLES = (".csv", ".tsv")
TABLES = (*TEXT_TABLES, ".parquet")


def is_frame(given: Any) -> bool:
    """Return whether something is a DataFrame, of pandas or polars."""
    return all(hasattr(given, name) for name in ("columns", "dtypes", "shape", "__getitem__"))


def is_table_file(given: Any) -> bool:
    """Return whether a path ends as a table does, or is a NPY file of numbers [rows, columns]."""
    if not isinstance(given, (str, Path)):
        return False
    suffix = Path(given).suffix.lower()
    return suffix in TABLES or (suffix == ".npy" and _holds_numbers(expand_user(given)))


def read_cells(given: Any) -> dict[str, list[Cell]]:
    """Return the cells of a table by column; a missing one is None."""
    if is_frame(given):
        return _read_frame(given)
    path = expand_user(given)
    check_exists(path)
    readers = {".parquet": _read_parquet, ".npy": _read_npy}
    return readers.get(path.suffix.lower(), _read_text)(path)


def read_form(given: Any) -> CsvForm:
    """Return how the file of a table is written; other tables are written with commas and decimal points."""
    if is_frame(given) or Path(given).suffix.lower() not in TEXT_TABLES:
        return CsvForm()
    form = read_csv(expand_user(given)).form
    if Path(given).suffix.lower() == ".tsv":  # its tabs are for files of that ending
        return replace(form, separator=";" if form.decimal == "," else ",")
    return form


def name_source(given: Any) -> str:
    """Return what errors call a table."""
    return str(given) if isinstance(given, (str, Path)) else type(given).__name__


def _read_text(path: Path) -> dict[str, list[Cell]]:
    cells, _ = read_table(path)
    return {name: [None if cell.lower() in MISSING else cell for cell in column] for name, column in cells.items()}


def _read_parquet(path: Path) -> dict[str, list[Cell]]:
    parquet = import_extra("pyarrow.parquet", "parquet", "A Parquet file")
    with explain_errors(path, "a Parquet file"):
        columns = parquet.read_table(path).to_pydict()
    return {str(name): _plain_cells(str(path), str(name), column) for name, column in columns.items()}


def _read_npy(path: Path) -> dict[str, list[Cell]]:
    with explain_errors(path, "a NPY file"):
        array = np.load(path, allow_pickle=False)
    return {
        f"x{place}": _plain_cells(str(path), f"x{place}", array[:, place].tolist()) for place in range(array.shape[1])
    }


def _read_frame(frame: Any) -> dict[str, list[Cell]]:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError("The DataFrame has two columns of one name; give them different names.")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    for name, column in columns.items():
        if column.dtype.kind in "mM":
            raise DataError(f"DataFrame: the column {name} holds dates; turn them into numbers, or leave it out.")
    return {name: _plain_cells("DataFrame", name, column.tolist()) for name, column in columns.items()}


def _plain_cells(source: str, name: str, cells: Sequence[Any]) -> list[Cell]:
    """Return text and numbers of any library as those of Python; None, NaN and their kin are missing."""
    plain: list[Cell] = []
    for row, cell in enumerate(cells):
        if cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell:
            plain.append(None)
        elif isinstance(cell, str):
            plain.append(None if cell.strip().lower() in MISSING else cell.strip())
        elif isinstance(cell, (bool, np.bool_)):
            plain.append(str(cell))
        elif isinstance(cell, (int, float, np.number)):
            plain.append(float(cell))
        else:
            kind = type(cell).__name__
            raise DataError(
                f"{source}: row {row} (from 0) of the column {name} is a {kind}; turn it into a number or text, "
                "or leave it out."
            )
    return plain


def _holds_numbers(path: Path) -> bool:
    try:
        with explain_errors(path, "a NPY file"):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except DataError:
        return False
    return array.ndim == 2 and array.dtype.kind in "fi"
