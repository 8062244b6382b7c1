"""Files of codes: CSV with a column per latent, or a plain NPY array [rows, latents]."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unbraid import atomic
from unbraid.data.base import expand_user
from unbraid.data.csv_files import CsvForm, encode_text, read_csv
from unbraid.data.file_formats import explain_errors
from unbraid.errors import DataError, UsageError


def write_codes(path: Path, codes: np.ndarray, latents: Sequence[str], names: Sequence[str], heading: str) -> None:
    """Write codes [rows, latents] as .npy, or as .csv whose first column, `heading`, holds the rows' names."""
    if path.suffix.lower() == ".npy":
        write_array(path, codes)
        return
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise UsageError(f"Codes are written to a file that ends in .csv or .npy, not to {path}.")
    rows = [[name, *(f"{number:.7g}" for number in code)] for name, code in zip(names, codes.tolist(), strict=True)]
    write_lines(path, [heading, *latents], rows)


def read_codes(path: Path, latents: Sequence[str]) -> np.ndarray:
    """Return codes [rows, latents] of a .npy or .csv file; columns of other names are ignored."""
    path = expand_user(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist.")
    if path.suffix.lower() == ".npy":
        with explain_errors(path, "a NPY file"):
            return np.load(path, allow_pickle=False)
    file = read_csv(path, "a CSV file of codes")
    header, lines = file.header, file.lines
    missing = [name for name in latents if name not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]}; codes of this run need {', '.join(latents)}.")
    places = [header.index(name) for name in latents]
    codes = []
    for number, cells in lines:
        try:
            codes.append([float(cells[place]) for place in places])
        except (ValueError, IndexError) as error:
            raise DataError(f"{path}, line {number}: a code is a number for each of {', '.join(latents)}.") from error
    return np.array(codes, dtype=np.float32).reshape(len(codes), len(latents))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a NPY file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    atomic.write_bytes(path, buffer.getvalue())


def write_table(path: Path, cells: Mapping[str, Sequence[Any]], form: CsvForm | None = None) -> None:
    """Write cells by column as a CSV file; None is an empty cell."""
    rows = [["" if cell is None else cell for cell in row] for row in zip(*cells.values(), strict=True)]
    write_lines(path, list(cells), rows, form)


def write_lines(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]], form: CsvForm | None = None) -> None:
    """Write lines with separator, encoding and line ends of a form; a .tsv file always has tabs."""
    form = form or CsvForm()
    buffer = io.StringIO(newline="")
    separator = "\t" if path.suffix.lower() == ".tsv" else form.separator
    writer = csv.writer(buffer, delimiter=separator, lineterminator=form.line_end)
    writer.writerow(header)
    writer.writerows(rows)
    atomic.write_bytes(path, encode_text(path, buffer.getvalue(), form.encoding))
