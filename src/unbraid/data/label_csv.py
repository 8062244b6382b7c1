"""Labels of pictures from a CSV file: a line per picture, a column per factor, empty where a label is missing."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid.data.factors import Factor
from unbraid.data.file_formats import explain_errors
from unbraid.errors import DataError

MISSING = frozenset({"", "nan", "na", "n/a", "none", "null"})


def read_labels(path: Path, pictures: Sequence[Path], folder: Path) -> tuple[tuple[Factor, ...], Tensor]:
    """Factors and their table [pictures, factors] from a CSV file with a header.

    The first column holds a picture's path below the folder, the others one factor each. A column of numbers becomes a
    factor of those numbers in their order, any other one of words in alphabetical order. An empty cell (or NaN, NA,
    none) is a missing label, as are all those of pictures that have no line. -1 is a number like any other here.
    """
    header, lines = _lines(path)
    rows = {picture.relative_to(folder).as_posix(): row for row, picture in enumerate(pictures)}
    cells = [[""] * (len(header) - 1) for _ in pictures]
    seen: set[str] = set()
    for number, line in lines:
        name = Path(line[0].strip()).as_posix()
        if len(line) != len(header):
            raise DataError(f"{path}, line {number}: {len(line)} cells, but {len(header)} in the header.")
        if name not in rows:
            raise DataError(f"{path}, line {number}: there is no picture {name} below {folder}.")
        if name in seen:
            raise DataError(f"{path}, line {number}: {name} has a line already.")
        seen.add(name)
        cells[rows[name]] = [cell.strip() for cell in line[1:]]
    columns = zip(header[1:], zip(*cells, strict=True), strict=True)
    made = [factor_column(path, name, column) for name, column in columns]
    return tuple(factor for factor, _ in made), torch.stack([column for _, column in made], dim=1)


def factor_column(path: Path, name: str, cells: Sequence[str]) -> tuple[Factor, Tensor]:
    """A column of a CSV file as a factor, and the place of each cell among its values [n]; -1 where there is none."""
    known = [cell for cell in cells if cell.lower() not in MISSING]
    if not known:
        raise DataError(f"{path}: no picture has a label of {name}; leave it out.")
    try:
        numbers: dict[str, float | str] = {cell: float(cell) for cell in known}
    except ValueError:
        numbers = {cell: cell for cell in known}
    for cell, number in numbers.items():
        if isinstance(number, float) and not math.isfinite(number):
            raise DataError(f"{path}: '{cell}' in the column {name} is no finite number; leave the cell empty.")
    values = sorted(set(numbers.values()))  # type: ignore[type-var]
    place = {cell: values.index(value) for cell, value in numbers.items()}
    column = torch.from_numpy(np.array([place.get(cell, -1) for cell in cells], dtype=np.int64))
    return Factor(name, len(values), tuple(values)), column  # type: ignore[arg-type]


def _lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and the other lines that are not empty with their numbers."""
    with explain_errors(path, "a CSV file of labels"):
        reader = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
        lines = [(reader.line_num, line) for line in reader]
        header, rest = [name.strip() for name in lines[0][1]] if lines else [], [each for each in lines[1:] if each[1]]
        if len(header) < 2 or not all(header[1:]) or len(set(header)) < len(header):
            raise ValueError("its first line must name the column of pictures and one or more factors, all different")
    return header, rest
