"""JSON records: a file that holds one, and a file of lines that each hold one and are only ever appended."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.errors import RunError
from unbraid.plain_text import ParseError, add_sum, check_sum, parse_json
from unbraid.safe_files import open_plain_file, read_text
from unbraid.schema import check_file

MAX_LINES_BYTES = 1 << 31
"""A larger history is refused; one that logs each of a million steps has a quarter of it."""


def read_record(text: str, stem: str, where: str) -> dict[str, Any]:
    """Return the mapping that a JSON file or a line holds; `where` names it in an error."""
    try:
        content = parse_json(text)
        check_file(stem, content, where)  # before the sum, because it names the field
        return check_sum(content)
    except ParseError as error:
        raise RunError(f"{where} is damaged: {error}.") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of the complete lines of a file, none if it does not exist."""
    if not path.exists():
        return []
    *lines, unfinished = read_text(path, MAX_LINES_BYTES).split("\n")
    _check_unfinished(unfinished, f"{path}, line {len(lines) + 1}")
    return [read_record(line, path.stem, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a file, after dropping a line that a killed process left unfinished."""
    line = add_sum(replace_non_finite(record))
    with atomic.explain_disk_errors(path):
        handle = open_plain_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            end = _cut_partial_line(file)
            try:
                atomic.write_all(handle, (json.dumps(line) + "\n").encode())
            except OSError:
                file.truncate(end)  # a full disk may have taken a part of the line
                raise


def drop_partial_line(path: Path) -> None:
    """Drop a line that a killed process left unfinished."""
    with os.fdopen(open_plain_file(path, os.O_RDWR), "r+b", buffering=0) as file:
        _cut_partial_line(file)


def replace_non_finite(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_unfinished(text: str, where: str) -> None:
    """Raise unless a text without a line end can be the beginning of a line that a killed process wrote."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return
    if end < len(text):
        raise RunError(f"{where} is damaged: it continues after its end; restore it.")


def _cut_partial_line(file: Any) -> int:
    """Cut a file after its last complete line, and return its length."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return 0
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)
    return file.seek(0, os.SEEK_END)
