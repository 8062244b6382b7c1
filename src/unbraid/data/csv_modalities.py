"""Your own items in several modalities, from a CSV file: a line per item, a column per modality.

Cells are paths of pictures relative to the file, numbers, or names of classes. An empty cell (or nan, na, none, null)
is a missing observation.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from unbraid.data.base import dataset, expand_user
from unbraid.data.csv_files import MISSING, check_marks, explain_unclear_mark, read_csv
from unbraid.data.factors import Factor, Pixels
from unbraid.data.label_csv import make_factor
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Kind, Modality
from unbraid.data.picture_files import SUFFIXES, read_alike
from unbraid.data.table_columns import parse_number
from unbraid.errors import DataError, UsageError, unknown

KINDS = ("image", "vector", "label")
KINDS_FORM = "COLUMN:image, COLUMN:vector, COLUMN:label or COLUMN:label:CLASS:CLASS…"
MAX_DIFFERENT_CELLS = 20
"""A longer column whose cells all differ is not taken for classes."""


@dataset("paired", yours=True)
def paired(
    *,
    csv: str | Path,
    size: int | None = None,
    modalities: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
    factors: tuple[str, ...] = (),
) -> MultimodalDataset:
    """Your own data from a CSV file, with a column of pictures, numbers or classes for each modality.

    `kinds` are COLUMN:image, COLUMN:vector, COLUMN:label or COLUMN:label:CLASS:CLASS….
    """
    return from_csv(csv, size=size, modalities=modalities, kinds=_parse_kinds(kinds), factors=factors)


def from_csv(
    path: str | Path,
    *,
    size: int | None = None,
    modalities: Sequence[str] = (),
    kinds: Mapping[str, str | Sequence[str]] | None = None,
    factors: Sequence[str] = (),
    name: str = "paired",
) -> MultimodalDataset:
    """Return items in several modalities: a line of a CSV file for each, below a line that names the columns.

    Columns NAME.0, NAME.1, … together are the vector NAME. A column of picture files is of kind image, one of numbers
    is a vector of one, any other a label. `kinds` overrides this by column; a list of classes makes a label that has
    only these. `modalities` are the columns to use, by default all except the `factors`, which only scores use. `size`
    resizes the central square of every picture to size x size.
    """
    path = expand_user(path)
    columns = read_columns(path)
    for wanted in (*modalities, *factors, *(kinds or {})):
        if wanted not in columns:
            raise unknown("column", wanted, columns, of=str(path))
    used = list(modalities) or [column for column in columns if column not in factors]
    if len(used) < 2:
        raise DataError(f"{path} has {len(used)} column of observations; at least two modalities are needed.")
    read = [_read_modality(columns[column], (kinds or {}).get(column), size) for column in used]
    _refuse_empty_lines(path, read, columns[used[0]].lines)
    found = [_read_factor(columns[column]) for column in factors]
    table = torch.stack([column for _, column in found], dim=1) if found else None
    return multimodal(name, read, tuple(factor for factor, _ in found), table, source=str(path))


@dataclass(frozen=True)
class CsvColumn:
    """Cells of a column, or of the columns NAME.0, NAME.1, … of a vector, as [part][row], and the lines of the rows."""

    path: Path
    name: str
    parts: list[list[str]]
    lines: list[int]

    @property
    def cells(self) -> list[str]:
        """Cells of a column with a single part."""
        return self.parts[0]

    @property
    def present(self) -> list[int]:
        """Rows with at least one cell that is not missing."""
        return [row for row, cells in enumerate(zip(*self.parts, strict=True)) if not all(map(_is_missing, cells))]

    def locate(self, row: int, part: int = 0) -> str:
        """Return file, line and column of a cell, for messages."""
        name = self.name if len(self.parts) == 1 else f"{self.name}.{part}"
        return f"{self.path}, line {self.lines[row]}, column {name}"

    def picture(self, row: int) -> Path:
        """Return the path that a cell names."""
        return self.path.parent / expand_user(self.cells[row])


def has_pictures(path: Path) -> bool:
    """Return whether a cell of a CSV file names a picture."""
    lines = read_csv(expand_user(path)).lines
    return any(Path(cell).suffix.lower() in SUFFIXES for _, cells in lines for cell in cells)


def list_picture_columns(path: Path, names: Sequence[str] = ()) -> list[list[Path]]:
    """Return the picture files that each column of a CSV file names, or each of those with `names`."""
    found = []
    for column in read_columns(path).values():
        if len(column.parts) == 1 and (not names or column.name in names):
            files = map(column.picture, column.present)
            found.append([file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()])
    return found


def read_columns(path: Path) -> dict[str, CsvColumn]:
    """Return columns by name; those of one vector become one."""
    return group_columns(path, *read_table(path))


def read_table(path: Path) -> tuple[dict[str, list[str]], list[int]]:
    """Return the cells of a CSV file by column, and the numbers of its lines."""
    check_exists(path)
    file = read_csv(path)
    check_table(path, file.header, file.lines)
    columns = zip(*(cells for _, cells in file.lines), strict=True)
    return dict(zip(file.header, map(list, columns), strict=True)), [number for number, _ in file.lines]


def check_exists(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it: a table (.csv, .tsv, .parquet) or an array (.npy).")
    if not path.is_file():
        folder = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"{path} does not exist{folder}.")


def group_columns(path: Path, cells: Mapping[str, list[str]], numbers: list[int]) -> dict[str, CsvColumn]:
    """Return columns by name, from cells by column and the numbers of the lines; those of one vector become one."""
    members: dict[str, list[str]] = {}
    for name in cells:
        dotted = re.fullmatch(r"(.+)\.\d+", name)
        members.setdefault(dotted[1] if dotted else name, []).append(name)
    found = {}
    for name, names in members.items():
        parts = [name] if names == [name] else [f"{name}.{part}" for part in range(len(names))]
        if set(names) != set(parts):
            wrong = next(each for each in names if each not in parts)
            raise DataError(f"{path}: the columns of the vector {name} must be {', '.join(parts)}, and one is {wrong}.")
        found[name] = CsvColumn(path, name, [cells[part] for part in parts], numbers)
    return found


def check_table(path: Path, header: list[str], lines: list[tuple[int, list[str]]]) -> None:
    """Raise a `DataError` if a CSV file has no names of columns, or a line has too few or too many cells."""
    for name in header:
        if parse_number(name) is not None or Path(name).suffix.lower() in SUFFIXES:
            raise DataError(
                f"{path}: its first line must name the columns, and '{name}' looks like a cell; add a line of names."
            )
    if "" in header:
        place = header.index("") + 1
        raise DataError(f"{path}: column {place} has no name; name it, or write the file without row numbers.")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: two columns are called {name}; give them different names.")
    if not lines:
        raise DataError(f"{path} has no lines below the one that names the columns.")
    for number, cells in lines:
        if len(cells) < len(header):
            missing = header[len(cells)]
            raise DataError(
                f"{path}, line {number}, column {missing}: the cell is missing; add a separator to leave it empty."
            )
        if len(cells) > len(header):
            counts = f"{len(cells)} cells for {len(header)} columns"
            raise DataError(
                f"{path}, line {number} has {counts}, the last being {header[-1]}; quote cells with "
                "commas, or separate cells by semicolons if numbers have decimal commas."
            )


def _read_modality(column: CsvColumn, choice: str | Sequence[str] | None, size: int | None) -> Modality:
    """Return a column as a modality; `choice` is a kind, a list of classes, or None to guess the kind."""
    rows = column.present
    if not rows:
        raise DataError(f"{column.path}: every cell of the column {column.name} is empty; leave it out.")
    classes = None if choice is None or isinstance(choice, str) else tuple(choice)
    kind = "label" if classes is not None else choice or _guess_kind(column, rows)
    if kind not in KINDS:
        raise unknown("kind", str(kind), KINDS, of=f"column {column.name}")
    if kind != "vector" and len(column.parts) > 1:
        count = len(column.parts)
        raise UsageError(f"{column.path}: {column.name} has {count} columns, so it is a vector and not of kind {kind}.")
    if kind == "image":
        values = _read_images(column, rows, size)
    elif kind == "vector":
        values = read_vectors(column, rows)
    else:
        values = read_classes(column, rows, classes)
    present = torch.zeros(len(column.lines), dtype=torch.bool, device="cpu")
    present[rows] = True
    return Modality(column.name, cast(Kind, kind), values, None if bool(present.all()) else present)


def _guess_kind(column: CsvColumn, rows: list[int]) -> Kind:
    if len(column.parts) > 1:
        return "vector"
    cells = {row: column.cells[row] for row in rows}
    pictures = [row for row, cell in cells.items() if Path(cell).suffix.lower() in SUFFIXES]
    if len(pictures) == len(rows) or any(column.picture(row).is_file() for row in pictures):
        return "image"
    words = [row for row, cell in cells.items() if parse_number(cell) is None]
    if not words:
        return "vector"
    check_marks(str(column.path), column.name, list(cells.values()))
    name = column.name
    advice = f"set data.kinds=[{name}:label], or from_csv(…, kinds={{'{name}': 'label'}}) in Python, if"
    if len(words) < len(rows) / 2:
        where = column.locate(words[0])
        raise DataError(
            f"{where}: '{cells[words[0]]}' is not a number as most of the column; {advice} these are classes."
        )
    if len(words) < len(rows):
        row = next(row for row, cell in cells.items() if parse_number(cell) is not None)
        where = column.locate(row)
        raise DataError(
            f"{where}: '{cells[row]}' is a number, and most of the column are names; {advice} it is a class."
        )
    if len(set(cells.values())) == len(rows) > MAX_DIFFERENT_CELLS:
        raise DataError(
            f"{column.path}: all cells of the column {name} differ, so they do not look like classes; {advice} they "
            "are, or name the columns to use with (data.)modalities=…."
        )
    return "label"


def _read_images(column: CsvColumn, rows: list[int], size: int | None) -> Pixels:
    paths = [column.picture(row) for row in rows]
    for row, path in zip(rows, paths, strict=True):
        if not path.is_file():
            raise DataError(f"{column.locate(row)}: the file {path} does not exist.")
    names = [f"{column.locate(row)}: {path}" for row, path in zip(rows, paths, strict=True)]
    images = read_alike(paths, names, size, f"{column.path}, column {column.name}")
    return Pixels(insert_blank_rows(images, rows, len(column.lines)), tuple(images.shape[1:]))


def read_vectors(column: CsvColumn, rows: list[int]) -> Pixels:
    """Return the numbers of the rows that have some, and zeros for the others."""
    vectors = []
    for row in rows:
        for part, cells in enumerate(column.parts):
            if _is_missing(cells[row]):
                raise DataError(f"{column.locate(row, part)} is empty, and other numbers of {column.name} are not.")
            if parse_number(cells[row]) is None:
                advice = explain_unclear_mark(cells[row]) or "correct it or leave it empty"
                raise DataError(f"{column.locate(row, part)}: '{cells[row]}' is not a finite number; {advice}.")
        vectors.append([float(cells[row]) for cells in column.parts])
    numbers = torch.tensor(vectors, dtype=torch.float32, device="cpu")
    return Pixels(insert_blank_rows(numbers, rows, len(column.lines)), (len(column.parts),))


def read_classes(column: CsvColumn, rows: list[int], classes: tuple[str, ...] | None) -> ClassLabels:
    """Return the classes of rows, which must be among `classes` if they are given."""
    names = [column.cells[row] if classes is not None else _name_class(column.cells[row]) for row in rows]
    if classes is None:
        classes = _sort_classes(names)
    if len(set(classes)) < len(classes):
        raise UsageError(f"{column.path}: the classes of {column.name} must all be different.")
    for row, name in zip(rows, names, strict=True):
        if name not in classes:
            raise DataError(f"{column.locate(row)}: '{name}' is none of the classes {', '.join(classes)}.")
    places = torch.full((len(column.lines),), -1, dtype=torch.int64, device="cpu")
    places[rows] = torch.tensor([classes.index(name) for name in names], device="cpu")
    return ClassLabels(places, classes)


def _name_class(cell: str) -> str:
    """Return one name for all ways to write a number, as 1 and 1.0, and other cells unchanged."""
    number = parse_number(cell)
    if number is None or re.match(r"[+-]?0\d", cell):  # 0012 is a name, and not 12
        return cell
    if number.is_integer():
        return str(int(number)) if abs(number) < 2**53 else cell
    return repr(number)


def _sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return different names, in the order of their numbers if all are numbers, else in alphabetical order."""
    numbers = {name: parse_number(name) for name in names}
    key: Callable[[str], Any] = lambda name: (numbers[name], name)  # noqa: E731
    return tuple(sorted(numbers, key=None if None in numbers.values() else key))


def _read_factor(column: CsvColumn) -> tuple[Factor, Tensor]:
    if len(column.parts) > 1:
        raise UsageError(f"{column.path}: a factor is one column, and {column.name} has {len(column.parts)}.")
    return make_factor(column.path, column.name, column.cells)


def insert_blank_rows(found: Tensor, rows: list[int], count: int) -> Tensor:
    """Return a tensor of `count` rows that holds `found` in some of them, and zeros in the others."""
    if len(rows) == count:
        return found
    spread = torch.zeros(count, *found.shape[1:], dtype=found.dtype, device="cpu")
    spread[rows] = found
    return spread


def _refuse_empty_lines(path: Path, modalities: Sequence[Modality], lines: list[int]) -> None:
    masks = [modality.present for modality in modalities if modality.present is not None]
    if len(masks) < len(modalities):
        return
    present = torch.stack(masks).any(0)
    if not bool(present.all()):
        line, names = lines[int((~present).nonzero()[0])], ", ".join(modality.name for modality in modalities)
        raise DataError(f"{path}, line {line}: all of the columns {names} are empty; remove the line.")


def _parse_kinds(kinds: Sequence[str]) -> dict[str, str | Sequence[str]]:
    """Return `["pet:label:cat:dog", "weight:vector"]` as a mapping."""
    parsed: dict[str, str | Sequence[str]] = {}
    for item in kinds:
        name, *words = (part.strip() for part in item.split(":"))
        if not words or (len(words) > 1 and words[0] != "label") or name in parsed:
            raise UsageError(f"kinds must hold {KINDS_FORM}, each column once, not '{item}'.")
        parsed[name] = words[1:] if len(words) > 1 else words[0]
    return parsed


def _is_missing(cell: str) -> bool:
    return cell.lower() in MISSING
