"""What several file formats share: errors that name the file, arrays row by row, rows in grid order."""

import csv
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.data.factors import Factor, FactorDataset
from unbraid.errors import DataError
from unbraid.progress import progress

_BROKEN = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    csv.Error,
)


@contextmanager
def explain_errors(path: Path, what: str) -> Iterator[None]:
    """Turns whatever a broken or foreign file makes a parser raise into one sentence: `path` is not `what`."""
    try:
        yield
    except _BROKEN as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path} is not {what} ({reason}).") from error


def read_npz_array(path: Path, key: str) -> np.ndarray:
    """One array of an npz file; nothing in it is ever unpickled."""
    shape, chunks = read_npz_rows(path, key)
    parts = list(chunks)
    return np.concatenate(parts).reshape(shape) if parts else np.empty(shape)


def read_npz_rows(path: Path, key: str, rows: int = 4096) -> tuple[tuple[int, ...], Iterator[np.ndarray]]:
    """Shape of an array in an npz file, and its rows in pieces, so that it never has to fit into memory."""
    shape = _npz_header(path, key)[0]
    return shape, _npz_pieces(path, key, rows)


def has_npz_arrays(path: Path, *keys: str) -> bool:
    """Whether a file is an npz file with all these arrays."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {f"{key}.npy" for key in keys} <= set(archive.namelist())


def stack_channels_first(pieces: Iterable[np.ndarray], count: int, what: str) -> Tensor:
    """Pieces of [n, height, width, channels] bytes as one tensor [count, channels, height, width]."""
    images, filled = None, 0
    with progress(f"Converting {what}", count) as bar:
        for piece in pieces:
            part = torch.from_numpy(piece).permute(0, 3, 1, 2)
            if images is None:
                images = torch.empty((count, *part.shape[1:]), dtype=torch.uint8, device="cpu")
            images[filled : filled + len(part)] = part
            filled += len(part)
            bar.advance(len(part))
    if images is None or filled != count:
        raise DataError(f"{what}: {filled} images where {count} were announced.")
    return images


def find_classes(labels: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct values of every column, in order, and each entry's position among them."""
    columns = [np.unique(column, return_inverse=True) for column in labels.T]
    return [values for values, _ in columns], np.stack([place for _, place in columns], axis=1)


def factor_of(name: str, values: np.ndarray) -> Factor:
    """A factor with the values that `find_classes` found."""
    return Factor(name, len(values), tuple(values.tolist()))


def sort_into_grid(data: FactorDataset) -> FactorDataset:
    """The same rows as a complete grid without a table, where every combination occurs exactly once."""
    if data.table is None or not data.factors or bool((data.table < 0).any()):
        return data
    code = torch.zeros(len(data), dtype=torch.int64, device=data.table.device)
    for column, size in enumerate(data.sizes):
        code = code * size + data.table[:, column]
    order = code.argsort(stable=True)
    if math.prod(data.sizes) != len(data) or not torch.equal(code[order], torch.arange(len(data)).to(code)):
        return data
    if torch.equal(code, code[order]):
        return replace(data, table=None)
    pixels = replace(data.pixels, stored=data.pixels.stored[order])
    held_out = None if data.held_out is None else code[data.held_out].sort().values
    return replace(data, pixels=pixels, table=None, held_out=held_out)


def _npz_header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype]:
    with (
        explain_errors(path, f"an npz file with '{key}'"),
        zipfile.ZipFile(path) as file,
        file.open(f"{key}.npy") as member,
    ):
        return _npy_header(path, key, member)


def _npz_pieces(path: Path, key: str, rows: int) -> Iterator[np.ndarray]:
    with (
        explain_errors(path, f"an npz file with '{key}'"),
        zipfile.ZipFile(path) as file,
        file.open(f"{key}.npy") as member,
    ):
        shape, dtype = _npy_header(path, key, member)
        count, row = (shape[0], shape[1:]) if shape else (1, ())
        for first in range(0, count, rows):
            wanted = min(rows, count - first)
            size = wanted * math.prod(row) * dtype.itemsize
            data = member.read(size)
            if len(data) != size:
                raise ValueError(f"'{key}' ends before its {count} rows")
            yield np.frombuffer(bytearray(data), dtype).reshape(wanted, *row)


def _npy_header(path: Path, key: str, member: Any) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(member)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(member)
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise DataError(f"{path}: '{key}' ({dtype}) is not a plain array in C order; save it as one.")
    return shape, dtype
