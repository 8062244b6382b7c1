"""CSV files as spreadsheets write them: separator, decimal mark and encoding are found by looking at the file.

European spreadsheets separate cells by semicolons and write 1,5 for one and a half. Such numbers are read as 1.5 if the
whole file agrees; if it leaves a doubt, cells stay as they are, and whoever needs them as numbers refuses them.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from unbraid.data.file_formats import explain_errors
from unbraid.errors import DataError
from unbraid.progress import announce

MISSING = frozenset({"", "nan", "na", "n/a", "none", "null"})
SEPARATORS = ",;\t"
LINES_TO_COMPARE = 100
"""Lines that must have as many cells as the header before a semicolon or a tab is taken for the separator."""

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_WHOLE = re.compile(rf"[+-]?\d+{_EXPONENT}")
_POINT = re.compile(rf"[+-]?(?:\d+\.\d*|\.\d+){_EXPONENT}")
_COMMA = re.compile(rf"[+-]?(?:\d+,\d*|,\d+){_EXPONENT}")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # 1,234 may be 1.234 or 1234
_SPACED = r"(?:[ \xa0\u202f]\d{3})+(?:[.,]\d+)?"  # 1 234,5
_GROUPED = re.compile(  # 1.234,5 and 1,234.5 and 1.234.567 and 1,234,567
    rf"[+-]?\d{{1,3}}(?:(?:\.\d{{3}})+,\d+|(?:,\d{{3}})+\.\d+|(?:\.\d{{3}}){{2,}}|(?:,\d{{3}}){{2,}}|{_SPACED})"
)

Lines = list[tuple[int, list[str]]]


@dataclass(frozen=True)
class CsvForm:
    """How a CSV file is written; `comma_columns` are those in which decimal commas were read."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    comma_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class CsvFile:
    """The names of the columns, number and cells of every other line that is not empty, and how they were written.

    Cells have decimal points, also where the file has decimal commas.
    """

    header: list[str]
    lines: Lines
    form: CsvForm


def read_csv(path: Path, expected: str = "a CSV file") -> CsvFile:
    """Return the cells of a CSV file; say what was found if it is not the usual UTF-8 with decimal points."""
    with explain_errors(path, expected):
        text, encoding = _decode(path, path.read_bytes())
        line_end = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        separator = _find_separator(text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            lines = [(reader.line_num, [cell.strip() for cell in line]) for line in reader if line]
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    if not lines:
        raise DataError(f"{path} is empty; its first line must name the columns.")
    header, lines = lines[0][1], lines[1:]
    places = _find_comma_columns(header, lines, separator)
    if places:
        lines = [(number, _use_points(cells, places)) for number, cells in lines]
        _tell_once(f"  {path}: numbers have decimal commas ({_give_example(header, places, lines)})")
    names = tuple(header[place] for place in places)
    return CsvFile(header, lines, CsvForm(separator, "," if places else ".", encoding, line_end, names))


def use_commas(cell: object) -> object:
    """Return a number, or text that is one, with a decimal comma, and anything else as it is."""
    return str(cell).replace(".", ",") if _POINT.fullmatch(str(cell)) else cell


def encode_text(path: Path, text: str, encoding: str) -> bytes:
    """Return text in an encoding, or in UTF-8 if that lacks a letter."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        announce(f"  {path}: written as UTF-8, since {encoding} has no '{text[error.start]}'")
        return text.encode("utf-8-sig")


def has_unclear_mark(cell: object) -> bool:
    """Return whether text is a number but for a comma, or for marks between thousands."""
    return isinstance(cell, str) and bool(_COMMA.fullmatch(cell) or _GROUPED.fullmatch(cell))


def explain_unclear_mark(cell: object) -> str:
    """Return what to do about a number with a comma or marks between thousands, and nothing for other cells."""
    if not has_unclear_mark(cell):
        return ""
    problem = "it has marks between thousands"
    if not _GROUPED.fullmatch(str(cell)):
        problem = "its comma may be a decimal mark or stand between thousands, which the table leaves open"
    return (
        f"{problem}; write numbers without marks between thousands, and all of them with decimal points or, with "
        "semicolons between cells, all with decimal commas"
    )


def check_marks(where: str, name: str, cells: Sequence[object]) -> None:
    """Raise if a column that is to be used consists of numbers, and some have a comma or marks between thousands."""
    unclear = [cell for cell in cells if has_unclear_mark(cell)]
    if unclear and 2 * sum(map(_is_like_number, cells)) >= len(cells):
        raise DataError(f"{where}: '{unclear[0]}' in the column {name} is unclear: {explain_unclear_mark(unclear[0])}.")


def _is_like_number(cell: object) -> bool:
    text = str(cell)
    return any(kind.fullmatch(text) for kind in (_WHOLE, _POINT, _COMMA, _GROUPED))


def _decode(path: Path, content: bytes) -> tuple[str, str]:
    """Return the text of a file, and its encoding: UTF-8, UTF-16 if it says so, or else Windows-1252."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16"), "utf-16"
    marked = content.startswith(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8-sig"), "utf-8-sig" if marked else "utf-8"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    if b"\0" in content:
        raise DataError(f"{path} is not text; save the table as CSV (UTF-8) in the program that wrote it.")
    valid = sum(not letter.isascii() for letter in content.decode("utf-8", "ignore"))
    broken = content.decode("utf-8", "replace").count("\ufffd")
    if marked or valid > broken:
        raise DataError(f"{path}, line {line}: a letter is damaged (most others are UTF-8); save the file as UTF-8.")
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {line} is neither UTF-8 nor Windows-1252; save the file as UTF-8.") from None
    word = next((word for word in re.findall(r"\w+|\S", text) if not word.isascii()), "")
    doubt = f"; save it as UTF-8 if '{word}' is wrong" if word else ""  # a space between thousands is no letter
    _tell_once(f"  {path}: read as Windows-1252 (Latin-1), not UTF-8{doubt}")
    return text, "cp1252"


def _find_separator(text: str) -> str:
    """Return a semicolon or a tab if it cuts all lines into equally many cells, or else the most frequent separator."""
    first = re.sub(r'"[^"]*"', "", text).lstrip("\n").partition("\n")[0]  # a quoted name may have several lines
    for separator in ";\t":  # names of columns may have commas, as in "length, mm"
        if separator in first:
            lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            if len({len(line) for line in islice(filter(None, lines), LINES_TO_COMPARE)}) == 1:
                return separator
    return max(SEPARATORS, key=first.count)


def _find_comma_columns(header: Sequence[str], lines: Lines, separator: str) -> list[int]:
    """Return the columns of numbers that have decimal commas, or none if the file leaves open what its commas are.

    It does if cells are separated by commas themselves ("10,1" may be a pair), if other numbers have decimal points or
    marks between thousands, or if every comma may stand between thousands (1,234): between tabs always, and between
    semicolons if other numbers of the column are whole.
    """
    if separator == "," or not any("," in cell for _, cells in lines for cell in cells):
        return []
    places, clear = [], False
    for place in range(len(header)):
        cells = [cell for cell in _read_column(lines, place) if cell.lower() not in MISSING]
        if 2 * sum(map(_is_like_number, cells)) < len(cells):
            continue
        if any(_POINT.fullmatch(cell) or _GROUPED.fullmatch(cell) for cell in cells):
            return []
        commas = [cell for cell in cells if _COMMA.fullmatch(cell)]
        if commas:
            places.append(place)
            alone = separator == ";" and not any(map(_WHOLE.fullmatch, cells))
            clear = clear or alone or not all(map(_THOUSANDS.fullmatch, commas))
    return places if clear else []


def _read_column(lines: Lines, place: int) -> Iterator[str]:
    return (cells[place] for _, cells in lines if place < len(cells))


def _use_points(cells: list[str], places: Sequence[int]) -> list[str]:
    return [
        cell.replace(",", ".") if place in places and _COMMA.fullmatch(cell) else cell
        for place, cell in enumerate(cells)
    ]


def _give_example(header: Sequence[str], places: Sequence[int], lines: Lines) -> str:
    """Return how the first number with a comma is read."""
    cell = next(cell for cell in _read_column(lines, places[0]) if _POINT.fullmatch(cell))
    return f"'{cell.replace('.', ',')}' of {header[places[0]]} is {cell}"


@lru_cache(maxsize=256)
def _tell_once(line: str) -> None:
    """Print a line; a file is read more than once on the way to a run."""
    announce(line)
