"""Fill the missing cells of a table from the others of its row.

With several modalities, a cell is the expected observation given those that the row has: the likeliest class, expected
numbers, or an expected picture. In a table of one modality, missing features start at their mean; encoding the row and
decoding its code then replace them by their expected values until these no longer change.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid.data.code_files import write_table
from unbraid.data.csv_files import CsvForm, use_commas
from unbraid.data.csv_modalities import CsvColumn, group_columns, insert_blank_rows, read_classes, read_vectors
from unbraid.data.modalities import Observed
from unbraid.data.picture_files import read_all, read_picture
from unbraid.data.table_columns import DIGITS, Cell, TableColumn, encode_cells, parse_number, restore, to_cells
from unbraid.data.table_files import is_frame, name_source, read_cells, read_form
from unbraid.data.table_rows import locate_row
from unbraid.errors import UsageError, unknown
from unbraid.models import Model, MultimodalModel
from unbraid.models.generation import ROWS_PER_CHUNK, encode_arrays
from unbraid.report.observation_files import write_picture
from unbraid.types import Shape

MAX_ROUNDS = 200
TOLERANCE = 1e-4
"""Largest change of a standardised feature in the last round."""


@dataclass
class CompletedTable:
    """A table by column, whose missing cells are filled; `filled` counts them by column.

    `pictures` are images by column and row, which `save` writes; the cells of other pictures are paths. `form` is how
    the file of the table was written, and `numbers` are the columns whose cells are numbers.
    """

    cells: dict[str, list[Any]]
    filled: dict[str, int]
    pictures: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    folder: Path = Path()
    paths: tuple[str, ...] = ()
    form: CsvForm = field(default_factory=CsvForm)
    numbers: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = len(next(iter(self.cells.values()), []))
        return f"CompletedTable({rows} rows, {sum(self.filled.values())} cells filled)"

    def save(self, path: str | Path) -> Path:
        """Write a CSV file as the table came, and pictures to the folder NAME-pictures beside it; return its path.

        Separator, decimal mark, encoding and line ends are those of the table's file.
        """
        path = Path(path)
        if path.suffix.lower() not in (".csv", ".tsv"):
            raise UsageError(f"A completed table is written to a file that ends in .csv, not to {path}.")
        cells = {name: list(column) for name, column in self.cells.items()}
        for name in self.paths:
            cells[name] = [cell and os.path.relpath(self.folder / cell, path.parent) for cell in cells[name]]
        pictures = path.with_name(f"{path.stem}-pictures")
        for (name, row), image in self.pictures.items():
            file = pictures / f"{name}-{row:05d}.png"
            write_picture(file, image)
            cells[name][row] = file.relative_to(path.parent).as_posix()
        if self.form.decimal == ",":
            for name in {*self.numbers, *self.form.comma_columns}:
                cells[name] = [use_commas(cell) for cell in cells[name]]
        write_table(path, cells, self.form)
        return path

    def to_pandas(self) -> Any:
        """Return the table as a DataFrame of pandas; pictures that were filled are tensors."""
        from unbraid.extras import import_extra

        pandas = import_extra("pandas", "pandas", "A DataFrame")
        cells = {name: list(column) for name, column in self.cells.items()}
        for (name, row), image in self.pictures.items():
            cells[name][row] = image
        return pandas.DataFrame(cells)


class ModalityTable(NamedTuple):
    """A table with a column (or NAME.0, NAME.1, …) for each modality: all its cells, and what a model sees of them."""

    cells: dict[str, list[str]]
    columns: dict[str, CsvColumn]
    observed: Observed
    folder: Path
    form: CsvForm


def read_modality_table(given: Any, model: MultimodalModel, classes: Mapping[str, tuple[str, ...]]) -> ModalityTable:
    """Return a CSV file or a DataFrame as observations; columns that are not modalities are kept as they are."""
    where = Path(name_source(given))
    cells = {
        name: ["" if cell is None else _format(cell) for cell in column] for name, column in read_cells(given).items()
    }
    count = len(next(iter(cells.values()), []))
    columns = group_columns(where, cells, list(range(2, count + 2)))
    known = {name: columns[name] for name in model.modalities if name in columns}
    if not known:
        raise unknown("column", next(iter(cells), ""), model.modalities, of=str(where))
    observed, masks = Observed(), []
    for name, column in known.items():
        rows = column.present
        masks.append(torch.zeros(count, dtype=torch.bool))
        masks[-1][rows] = True
        shape = model.shapes[name]
        observed[name] = torch.zeros(count, *shape)
        if rows:
            observed[name] = _read_modality(column, rows, shape, classes.get(name))
    observed.present = torch.stack(masks, -1)
    if not bool(observed.present.any(-1).all()):
        row = int((~observed.present.any(-1)).nonzero()[0])
        raise UsageError(f"{where}, line {row + 2}: all of {', '.join(known)} are empty; remove the line.")
    folder = Path() if is_frame(given) else where.expanduser().parent
    return ModalityTable(cells, known, observed, folder, read_form(given))


def _read_modality(column: CsvColumn, rows: list[int], shape: Shape, classes: tuple[str, ...] | None) -> Tensor:
    every = torch.arange(len(column.lines))
    if len(shape) == 3:
        size, mode = shape[1] if shape[1] == shape[2] else None, "L" if shape[0] == 1 else "RGB"
        named = [(column.picture(row), f"{column.locate(row)}: {column.picture(row)}") for row in rows]
        stored = read_all(named, lambda picture: read_picture(*picture, mode, size), column.name)
        return insert_blank_rows(stored.float() / 255, rows, len(column.lines))
    values = read_classes(column, rows, classes) if classes else read_vectors(column, rows)
    return values[every]


@torch.no_grad()
def complete_modalities(
    model: MultimodalModel, table: ModalityTable, classes: Mapping[str, tuple[str, ...]]
) -> CompletedTable:
    """Fill the cells of every modality that a row lacks; one that the table lacks becomes a new column."""
    present, names = table.observed.present, list(table.observed)
    if present is None:
        raise UsageError("A table to complete needs its mask of present cells.")
    parts: list[dict[str, Tensor]] = []
    for rows in torch.arange(len(present)).split(ROWS_PER_CHUNK):
        given = Observed({name: table.observed[name][rows] for name in names})
        given.present = present[rows]
        parts.append(model.expected(encode_arrays(model, given)))
    made = {name: torch.cat([part[name] for part in parts]).cpu() for name in model.modalities}
    missing = {
        name: (~present[:, names.index(name)]).nonzero().flatten().tolist() if name in names else range(len(present))
        for name in model.modalities
    }
    result = tabulate(made, classes, missing, {name: list(column) for name, column in table.cells.items()})
    result.folder = table.folder
    result.paths = tuple(name for name in names if len(model.shapes[name]) == 3)
    result.form = table.form
    return result


def tabulate(
    values: Mapping[str, Tensor],
    classes: Mapping[str, tuple[str, ...]],
    rows: Mapping[str, Sequence[int]] | None = None,
    cells: dict[str, list[Any]] | None = None,
) -> CompletedTable:
    """Write observations by modality into the cells of `rows` (all, if None): classes, numbers and pictures."""
    count = len(next(iter(values.values())))
    cells, filled, pictures, numbers = {} if cells is None else cells, {}, {}, []
    for name, value in values.items():
        chosen = range(count) if rows is None else rows[name]
        parts = [name] if value.ndim == 4 or name in classes or name in cells or value.shape[1] == 1 else []
        parts = parts or [f"{name}.{part}" for part in range(value.shape[1])]
        for part in parts:
            cells.setdefault(part, [""] * count)
        if value.ndim < 4 and _are_numbers(classes.get(name, ())):
            numbers += parts
        for row in chosen:
            if value.ndim == 4:
                pictures[name, row] = value[row]
            elif name in classes:
                cells[name][row] = classes[name][int(value[row].argmax())]
            else:
                for part, number in zip(parts, value[row].tolist(), strict=True):
                    cells[part][row] = _format(number)
        filled[name] = len(chosen)
    return CompletedTable(cells, filled, pictures, numbers=tuple(numbers))


@torch.no_grad()
def complete_features(model: Model, given: Any, columns: Sequence[TableColumn]) -> CompletedTable:
    """Fill the missing cells of a table of one modality by the fixed point of encoding and decoding."""
    if not columns:
        raise UsageError("Only a run that was trained on a table, or on several modalities, completes tables.")
    if not model.likelihoods:
        raise UsageError("This model has no expected observation given a code, so it cannot complete a table.")
    where, cells = name_source(given), read_cells(given)
    values, known = encode_cells(columns, cells, where)
    rows = (~known).any(-1).nonzero().flatten()
    if not bool(known.any(-1).all()):
        empty = int((~known.any(-1)).nonzero()[0])
        raise UsageError(f"{locate_row(where, empty)}: all features are missing; remove the row.")
    device = next(model.parameters()).device
    x, fixed = values[rows].to(device), known[rows].to(device)
    for _ in range(MAX_ROUNDS if len(rows) else 0):
        expected = model.likelihood.mean(model.decode(model.space.center(model.encode(x))))
        filled = torch.where(fixed, x, expected)
        change = float((filled - x).abs().max())
        x = filled
        if change < TOLERANCE:
            break
    made = to_cells(columns, restore(columns, x).cpu())
    result: dict[str, list[Any]] = {name: list(column) for name, column in cells.items()}
    counts = {}
    for column in columns:
        old: list[Cell] = result.get(column.name) or [None] * len(values)
        missing = [(place, row) for place, row in enumerate(rows.tolist()) if old[row] is None]
        for place, row in missing:
            old[row] = made[column.name][place]
        result[column.name], counts[column.name] = old, len(missing)
    numbers = tuple(column.name for column in columns if _are_numbers(column.classes))
    return CompletedTable(result, counts, form=read_form(given), numbers=numbers)


def _are_numbers(classes: Sequence[str]) -> bool:
    """Return whether the cells of a column are numbers: it has no classes, or all of them are numbers."""
    return all(parse_number(each) is not None for each in classes)


def _format(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.{DIGITS}g}"
