"""Labels of pictures: from a CSV file with a line per picture and a column per factor, empty where a label is missing,
or from the folders that the pictures are in, one per class.
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.data.base import expand_user
from unbraid.data.csv_files import MISSING, read_csv
from unbraid.data.factors import Factor
from unbraid.data.picture_files import SUFFIXES
from unbraid.errors import DataError

SUBFOLDERS = "subfolders"
"""Value of `labels` that takes the name of a picture's folder as its label."""

FOLDER_FACTOR = "folder"
"""Name of the factor."""


def read_labels(
    path: Path, pictures: Sequence[Path], folder: Path, left_out: Collection[str] = ()
) -> tuple[tuple[Factor, ...], Tensor]:
    """Return factors and their table [pictures, factors] from a CSV file with a header.

    The first column holds a picture's path below the folder, the others one factor each. A column of numbers becomes a
    factor of those numbers in their order, any other one of words in alphabetical order. An empty cell (or NaN, NA,
    none) is a missing label; a picture without a line lacks all of them. -1 is a number like any other here. Lines of
    pictures that are `left_out`, by their paths below the folder, are ignored.
    """
    file = read_csv(path, "a CSV file of labels")
    header, lines = file.header, file.lines
    if len(header) < 2 or not all(header[1:]) or len(set(header)) < len(header):
        raise DataError(f"{path}: its first line must name the column of pictures and factors, all different.")
    rows = {picture.relative_to(folder).as_posix(): row for row, picture in enumerate(pictures)}
    labels: dict[str, list[str]] = {}
    for number, cells in lines:
        name = Path(cells[0]).as_posix()
        if len(cells) != len(header):
            raise DataError(f"{path}, line {number}: {len(cells)} cells, but {len(header)} in the header.")
        if name in left_out:
            continue
        if name not in rows:
            raise DataError(f"{path}, line {number}: no picture {name} exists below {folder}.")
        if name in labels:
            raise DataError(f"{path}, line {number}: {name} has a line already.")
        labels[name] = cells[1:]
    unlabelled = [""] * (len(header) - 1)
    columns = zip(*(labels.get(name, unlabelled) for name in rows), strict=True)
    found = [make_factor(path, name, cells) for name, cells in zip(header[1:], columns, strict=True)]
    return tuple(factor for factor, _ in found), torch.stack([column for _, column in found], dim=1)


def make_factor(path: Path, name: str, cells: Sequence[str]) -> tuple[Factor, Tensor]:
    """Return a column of a CSV file as a factor, and the place of each cell among its values [n]; -1 if missing."""
    known = [cell for cell in cells if cell.lower() not in MISSING]
    if not known:
        raise DataError(f"{path}: no row has a label of {name}; leave it out.")
    try:
        parsed: dict[str, float | str] = {cell: float(cell) for cell in known}
    except ValueError:
        parsed = {cell: cell for cell in known}
    for cell, value in parsed.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"{path}: '{cell}' in the column {name} is not a finite number; leave the cell empty.")
    values = sorted(set(parsed.values()))  # type: ignore[type-var]
    places = {cell: values.index(value) for cell, value in parsed.items()}
    column = torch.from_numpy(np.array([places.get(cell, -1) for cell in cells], dtype=np.int64))
    return Factor(name, len(values), tuple(values)), column  # type: ignore[arg-type]


def has_labelled_subfolders(folder: Any) -> bool:
    """Return whether all pictures below a folder are in subfolders, and in at least two different ones."""
    if not isinstance(folder, (str, Path)) or not expand_user(folder).is_dir():
        return False
    entries = list(expand_user(folder).iterdir())
    if any(entry.suffix.lower() in SUFFIXES and entry.is_file() for entry in entries):
        return False
    holding = (entry for entry in entries if entry.is_dir() and _holds_picture(entry))
    return next(holding, None) is not None and next(holding, None) is not None


def _holds_picture(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES and path.is_file() for path in folder.rglob("*"))


def label_by_subfolder(names: Sequence[Path]) -> tuple[tuple[Factor, ...], Tensor]:
    """Return the factor `folder` and the table [pictures, 1] of relative paths; -1 for one that is in no subfolder."""
    labels = [name.parts[0] if len(name.parts) > 1 else None for name in names]
    values = tuple(sorted({label for label in labels if label is not None}))
    places = {label: place for place, label in enumerate(values)}
    table = torch.tensor([[-1 if label is None else places[label]] for label in labels], device="cpu")
    return (Factor(FOLDER_FACTOR, len(values), values),), table
