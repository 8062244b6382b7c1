"""Where a row of a table stands, as messages say it."""

from pathlib import Path

from unbraid.data.base import expand_user
from unbraid.data.csv_files import read_csv

WITHOUT_LINES = ("", ".parquet", ".npy")
"""Endings of tables whose rows have no lines; a DataFrame has no ending."""


def locate_row(source: str, row: int) -> str:
    """Return the line of a row of a text file, and elsewhere its number from 0."""
    if Path(source).suffix.lower() in WITHOUT_LINES:
        return f"{source}: row {row} (from 0)"
    return f"{source}, line {read_csv(expand_user(source)).lines[row][0]}"
