"""Your own things in several modalities, from a CSV file: a line per thing, a column per modality.

Cells are paths of pictures relative to the file, numbers, or names of classes. An empty cell (or nan, na, none, null)
is an observation that is missing.
"""

import csv as formats
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from unbraid.data.base import dataset
from unbraid.data.factors import Factor, Pixels
from unbraid.data.file_formats import explain_errors
from unbraid.data.label_csv import MISSING, factor_column
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Kind, Modality
from unbraid.data.picture_files import SUFFIXES, read_alike
from unbraid.errors import DataError, UsageError, unknown

KINDS = ("image", "vector", "label")
LARGEST = torch.finfo(torch.float32).max
FEW = 20
"""So many cells may all differ and still be taken for classes."""


@dataset("paired", yours=True)
def paired(
    *,
    csv: str | Path,
    size: int | None = None,
    modalities: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
    factors: tuple[str, ...] = (),
) -> MultimodalDataset:
    """Your own things from a CSV file, with a column of pictures, numbers or classes for each modality.

    `kinds` are COLUMN:image, COLUMN:vector, COLUMN:label or COLUMN:label:CLASS:CLASS….
    """
    return from_csv(csv, size=size, modalities=modalities, kinds=_spelled(kinds), factors=factors)


def from_csv(
    path: str | Path,
    *,
    size: int | None = None,
    modalities: Sequence[str] = (),
    kinds: Mapping[str, str | Sequence[str]] | None = None,
    factors: Sequence[str] = (),
    name: str = "paired",
) -> MultimodalDataset:
    """Things in several modalities: a line of a CSV file for each, below a line that names the columns.

    Columns NAME.0, NAME.1, … together are the vector NAME. A column of picture files is of kind image, one of numbers
    is a vector of one, any other a label; `kinds` says otherwise, with a list of classes for a label that has only
    these. `modalities` are the columns to take, by default all but the `factors`, which are known for scores. With
    `size` the central square of every picture is resized to size x size.
    """
    path = Path(path).expanduser()
    columns = _grouped(path, *_lines(path))
    for wanted in (*modalities, *factors, *(kinds or {})):
        if wanted not in columns:
            raise unknown("column", wanted, columns, of=str(path))
    taken = list(modalities) or [each for each in columns if each not in factors]
    if len(taken) < 2:
        raise DataError(f"{path} has {len(taken)} column of observations, and two modalities or more are needed.")
    made = [_modality(columns[each], (kinds or {}).get(each), size) for each in taken]
    _refuse_blank(path, made, columns[taken[0]].lines)
    known = [_factor(columns[each]) for each in factors]
    table = torch.stack([column for _, column in known], dim=1) if known else None
    return multimodal(name, made, tuple(factor for factor, _ in known), table, source=str(path))


@dataclass(frozen=True)
class CsvColumn:
    """Cells of a column, or of the columns NAME.0, NAME.1, … of a vector, as [part][row], and the lines of the rows."""

    path: Path
    name: str
    parts: list[list[str]]
    lines: list[int]

    @property
    def cells(self) -> list[str]:
        """Those of the only part."""
        return self.parts[0]

    @property
    def present(self) -> list[int]:
        """Rows that have a cell that is not missing."""
        return [row for row, cells in enumerate(zip(*self.parts, strict=True)) if not all(map(_missing, cells))]

    def at(self, row: int, part: int = 0) -> str:
        """Where a cell is, in words."""
        name = self.name if len(self.parts) == 1 else f"{self.name}.{part}"
        return f"{self.path}, line {self.lines[row]}, column {name}"


def _lines(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Names of the columns, cells of the other lines and the numbers of these."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"There is no file {path}{where}.")
    with explain_errors(path, "a CSV file"):
        text = path.read_text(encoding="utf-8-sig")
        first = text.partition("\n")[0]
        reader = formats.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
        try:
            found = [(reader.line_num, [cell.strip() for cell in line]) for line in reader if line]
        except formats.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    if not found:
        raise DataError(f"{path} is empty; its first line must name the columns.")
    header, rows = found[0][1], found[1:]
    _refuse_data(path, header)
    if "" in header:
        place = header.index("") + 1
        raise DataError(f"{path}: column {place} has no name; name it, or write the file without row numbers.")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path}: two columns are called {name}; give them different names.")
    if not rows:
        raise DataError(f"{path} has no lines below the one that names the columns.")
    for number, cells in rows:
        if len(cells) < len(header):
            lacking = header[len(cells)]
            raise DataError(f"{path}, line {number}, column {lacking}: there is no cell; leave it empty with a comma.")
        if len(cells) > len(header):
            over = f"{len(cells)} cells for {len(header)} columns"
            raise DataError(f"{path}, line {number} has {over}, the last being {header[-1]}; quote cells with commas.")
    return header, [cells for _, cells in rows], [number for number, _ in rows]


def _refuse_data(path: Path, header: list[str]) -> None:
    """A first line with a number or a picture in it names no columns."""
    for name in header:
        if _number(name) is not None or Path(name).suffix.lower() in SUFFIXES:
            told = f"its first line must name the columns, and '{name}' in it looks like what they hold"
            raise DataError(f"{path}: {told}; put a line of names above it.")


def _grouped(path: Path, header: list[str], rows: list[list[str]], lines: list[int]) -> dict[str, CsvColumn]:
    """Columns by name, those of one vector together."""
    cells = dict(zip(header, ([*column] for column in zip(*rows, strict=True)), strict=True))
    members: dict[str, list[str]] = {}
    for name in header:
        dotted = re.fullmatch(r"(.+)\.\d+", name)
        members.setdefault(dotted[1] if dotted else name, []).append(name)
    columns = {}
    for name, own in members.items():
        parts = [f"{name}.{part}" for part in range(len(own))]
        if own != [name] and set(own) != set(parts):
            wrong = next(each for each in own if each not in parts)
            raise DataError(f"{path}: the columns of the vector {name} must be {', '.join(parts)}, and one is {wrong}.")
        columns[name] = CsvColumn(path, name, [cells[each] for each in (own if own == [name] else parts)], lines)
    return columns


def _modality(column: CsvColumn, said: str | Sequence[str] | None, size: int | None) -> Modality:
    rows = column.present
    if not rows:
        raise DataError(f"{column.path}: every cell of the column {column.name} is empty; leave it out.")
    classes = None if said is None or isinstance(said, str) else tuple(said)
    kind = "label" if classes is not None else said or _kind(column, rows)
    if kind not in KINDS:
        raise unknown("kind", str(kind), KINDS, of=f"column {column.name}")
    if kind != "vector" and len(column.parts) > 1:
        raise UsageError(f"{column.path}: {column.name} has {len(column.parts)} columns, so it is a vector, no {kind}.")
    if kind == "image":
        values = _images(column, rows, size)
    elif kind == "vector":
        values = _vectors(column, rows)
    else:
        values = _labels(column, rows, classes)
    there = torch.zeros(len(column.lines), dtype=torch.bool, device="cpu")
    there[rows] = True
    return Modality(column.name, cast(Kind, kind), values, None if bool(there.all()) else there)


def _kind(column: CsvColumn, rows: list[int]) -> Kind:
    """What the cells look like."""
    if len(column.parts) > 1:
        return "vector"
    cells = [column.cells[row] for row in rows]
    pictures = [Path(cell).suffix.lower() in SUFFIXES for cell in cells]
    if all(pictures) or any(_file(column, cell).is_file() for cell, may in zip(cells, pictures, strict=True) if may):
        return "image"
    wrong = [row for row in rows if _number(column.cells[row]) is None]
    if not wrong:
        return "vector"
    if len(wrong) < len(rows) / 2:
        cell, how = column.cells[wrong[0]], f"{_as_label(column)} if these are classes"
        raise DataError(f"{column.at(wrong[0])}: '{cell}' is no number as most of the column is; {how}.")
    if len(wrong) < len(rows):
        row = next(row for row in rows if _number(column.cells[row]) is not None)
        cell, how = column.cells[row], f"{_as_label(column)} if it is a class, too"
        raise DataError(f"{column.at(row)}: '{cell}' is a number, and most of the column are names; {how}.")
    if len(set(cells)) == len(cells) > FEW:
        how = f"{_as_label(column)} if they are, or name the columns to take with (data.)modalities=…"
        raise DataError(
            f"{column.path}: no two cells of the column {column.name} are equal, so these are no classes; {how}."
        )
    return "label"


def _as_label(column: CsvColumn) -> str:
    """What to say, on the command line and in Python, where neither knows the other's form."""
    return f"say data.kinds=[{column.name}:label], or from_csv(…, kinds={{'{column.name}': 'label'}}) in Python,"


def _images(column: CsvColumn, rows: list[int], size: int | None) -> Pixels:
    paths, names = [], []
    for row in rows:
        found = _file(column, column.cells[row])
        if not found.is_file():
            raise DataError(f"{column.at(row)}: there is no file {found}.")
        paths.append(found)
        names.append(f"{column.at(row)}: {found}")
    read = read_alike(paths, names, size, f"{column.path}, column {column.name}")
    return Pixels(_spread(read, rows, len(column.lines)), tuple(read.shape[1:]))


def _vectors(column: CsvColumn, rows: list[int]) -> Pixels:
    found = []
    for row in rows:
        numbers = []
        for part, cells in enumerate(column.parts):
            number = _number(cells[row])
            if _missing(cells[row]):
                raise DataError(f"{column.at(row, part)} is empty, and other numbers of {column.name} are not.")
            if number is None:
                raise DataError(f"{column.at(row, part)}: '{cells[row]}' is no finite number.")
            numbers.append(number)
        found.append(numbers)
    read = torch.tensor(found, dtype=torch.float32, device="cpu")
    return Pixels(_spread(read, rows, len(column.lines)), (len(column.parts),))


def _labels(column: CsvColumn, rows: list[int], classes: tuple[str, ...] | None) -> ClassLabels:
    if classes is None:
        names = {row: class_name(column.cells[row]) for row in rows}
        classes = tuple(sorted(set(names.values()), key=_rank(names.values())))
        places = torch.full((len(column.lines),), -1, dtype=torch.int64, device="cpu")
        places[rows] = torch.tensor([classes.index(names[row]) for row in rows], device="cpu")
        return ClassLabels(places, classes)
    if len(set(classes)) < len(classes):
        raise UsageError(f"{column.path}: the classes of {column.name} must all be different.")
    for row in rows:
        if column.cells[row] not in classes:
            raise DataError(f"{column.at(row)}: '{column.cells[row]}' is none of the classes {', '.join(classes)}.")
    places = torch.full((len(column.lines),), -1, dtype=torch.int64, device="cpu")
    places[rows] = torch.tensor([classes.index(column.cells[row]) for row in rows], device="cpu")
    return ClassLabels(places, classes)


def class_name(cell: str) -> str:
    """The cell itself; a number that is written in several ways, as 1 and 1.0, has one name."""
    number = _number(cell)
    if number is None or re.match(r"[+-]?0\d", cell):  # 0012 is a name, and not 12
        return cell
    if number.is_integer():
        return str(int(number)) if abs(number) < 2**53 else cell
    return repr(number)


def _rank(names: Iterable[str]) -> Callable[[str], Any]:
    """Numbers in their order, if all names are, and else words in alphabetical order."""
    numbers = {name: _number(name) for name in names}
    if any(number is None for number in numbers.values()):
        return lambda name: name
    return lambda name: (numbers[name], name)


def _factor(column: CsvColumn) -> tuple[Factor, Tensor]:
    if len(column.parts) > 1:
        raise UsageError(f"{column.path}: a factor is one column, and {column.name} has {len(column.parts)}.")
    return factor_column(column.path, column.name, column.cells)


def _spread(read: Tensor, rows: list[int], count: int) -> Tensor:
    """What was read of some rows among zeros for the others."""
    if len(rows) == count:
        return read
    spread = torch.zeros(count, *read.shape[1:], dtype=read.dtype, device="cpu")
    spread[rows] = read
    return spread


def _refuse_blank(path: Path, made: Sequence[Modality], lines: list[int]) -> None:
    masks = [modality.present for modality in made]
    if any(mask is None for mask in masks):
        return
    there = torch.stack([mask for mask in masks if mask is not None]).any(0)
    if not bool(there.all()):
        line, names = lines[int((~there).nonzero()[0])], ", ".join(modality.name for modality in made)
        raise DataError(f"{path}, line {line}: all of the columns {names} are empty; remove the line.")


def _spelled(kinds: Sequence[str]) -> dict[str, str | Sequence[str]]:
    """`["pet:label:cat:dog", "weight:vector"]` as a mapping."""
    said: dict[str, str | Sequence[str]] = {}
    for each in kinds:
        name, *words = (part.strip() for part in each.split(":"))
        if not words or (len(words) > 1 and words[0] != "label") or name in said:
            form = "COLUMN:image, COLUMN:vector, COLUMN:label or COLUMN:label:CLASS:CLASS…"
            raise UsageError(f"kinds must hold {form}, each column once, not '{each}'.")
        said[name] = words[1:] if len(words) > 1 else words[0]
    return said


def _file(column: CsvColumn, cell: str) -> Path:
    return column.path.parent / Path(cell).expanduser()


def _missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None  # a larger one would be infinite as a float32, and NaN is none
