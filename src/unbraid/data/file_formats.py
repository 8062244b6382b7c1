"""Helpers for file formats: find files, name a broken file in the error, read arrays piece by piece, make factors."""

import csv
import lzma
import math
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import DataError
from unbraid.progress import progress

_PARSER_ERRORS = (
    *(OSError, EOFError, KeyError, ValueError, SyntaxError, csv.Error, Image.DecompressionBombError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, struct.error, OverflowError),
    *(tokenize.TokenError, NotImplementedError),  # of the header of a NPY file, and of an unknown compression
)

MAX_NAMES = 6
"""Names of a foreign archive's files that an error lists."""


@contextmanager
def explain_errors(path: Path | str, expected: str, told: type[DataError] = DataError) -> Iterator[None]:
    """Turn whatever a parser raises for a broken or foreign file into a `DataError`: `path` is not `expected`."""
    try:
        yield
    except FileNotFoundError as error:
        raise told(f"There is no file {path}.") from error
    except _PARSER_ERRORS as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        reason = (text.splitlines() or [type(error).__name__])[0].rstrip(".")
        raise told(f"{path} is not {expected} ({reason}).") from error


def find_file(source: Path, *patterns: str) -> Path:
    """Return `source` if it is a file, else the first file below it that fits the first pattern with a match."""
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    if source.is_file():
        return source
    for pattern in patterns:
        found = sorted(source.rglob(pattern))
        folders = list(dict.fromkeys(path.parent for path in found))
        if len(folders) > 1:  # other data may have files of the same names, as Fashion-MNIST has MNIST's
            raise DataError(f"{source} holds {pattern} in {folders[0]} and in {folders[1]}; choose one of them.")
        if found:
            return found[0]
    raise DataError(f"{source} holds no {' or '.join(patterns)}.")


def iterate_files(source: Path, ending: str, expected: str) -> Iterator[tuple[Path, bytes]]:
    """Yield path and content of every file with an ending, in a folder or else in a tar file."""
    paths = sorted(source.rglob(f"*{ending}")) if source.is_dir() else []
    for path in paths:
        yield path, path.read_bytes()
    if paths:
        return
    archives = ("*.tar.gz", "*.tgz", "*.tar")
    if source.is_dir() and not any(True for pattern in archives for _ in source.rglob(pattern)):
        raise DataError(f"{source} is not {expected}: it holds no *{ending}.")
    path = find_file(source, *archives)
    _check_archive(path, expected)
    with explain_errors(path, expected), tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(ending) else None
            if file is not None:
                yield path / member.name, file.read()


def _check_archive(path: Path, expected: str) -> None:
    """Raise unless a file is a tar archive; of a zip file, as .npz is one, say what it holds."""
    with explain_errors(path, expected):
        if tarfile.is_tarfile(path):
            return
        held = []
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                held = [name.removesuffix(".npy") for name in archive.namelist()]
    found = f"it holds {', '.join(held[:MAX_NAMES])}" if held else "it is no archive that can be opened"
    raise DataError(f"{path} is not {expected}: {found}.")


def read_npz_array(path: Path, key: str) -> np.ndarray:
    """Return one array of an npz file without unpickling anything."""
    shape, pieces = read_npz_rows(path, key)
    parts = list(pieces)
    return np.concatenate(parts).reshape(shape) if parts else np.empty(shape)


def read_npz_rows(path: Path, key: str, rows: int = 4096) -> tuple[tuple[int, ...], Iterator[np.ndarray]]:
    """Return the shape of an array in an npz file, and its rows in pieces that fit into memory."""
    with _open_npy(path, key) as (shape, _, _):
        return shape, _read_pieces(path, key, rows)


def has_npz_arrays(path: Path, *keys: str) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with explain_errors(path, "an npz file"), zipfile.ZipFile(path) as archive:
        return {f"{key}.npy" for key in keys} <= set(archive.namelist())


def stack_channels_first(pieces: Iterable[np.ndarray], count: int, title: str) -> Tensor:
    """Return pieces of [n, height, width, channels] bytes as one tensor [count, channels, height, width]."""
    images, filled = None, 0
    with progress(f"Converting {title}", count) as bar:
        for piece in pieces:
            part = torch.from_numpy(piece).permute(0, 3, 1, 2)
            if images is None:
                images = torch.empty((count, *part.shape[1:]), dtype=torch.uint8, device="cpu")
            images[filled : filled + len(part)] = part
            filled += len(part)
            bar.advance(len(part))
    if images is None or filled != count:
        raise DataError(f"{title}: {filled} images where {count} were announced.")
    return images


def make_grid(name: str, factor_names: Sequence[str], images: np.ndarray, source: str) -> FactorDataset:
    """Return bytes [*factors, height, width, channels] as a complete grid of factors."""
    sizes = images.shape[: len(factor_names)]
    factors = tuple(Factor(factor, size) for factor, size in zip(factor_names, sizes, strict=True))
    flat = torch.from_numpy(images.reshape(-1, *images.shape[-3:])).permute(0, 3, 1, 2).contiguous()
    return FactorDataset(name, Pixels(flat, tuple(flat.shape[1:])), factors, source=source)


def make_factors(names: Iterable[str], columns: Iterable[np.ndarray]) -> tuple[tuple[Factor, ...], Tensor]:
    """Return a factor for each column of labels, whose values are the distinct labels in order, and their table."""
    found = [np.unique(column, return_inverse=True) for column in columns]
    named = zip(names, found, strict=True)
    factors = tuple(Factor(name, len(values), tuple(values.tolist())) for name, (values, _) in named)
    return factors, torch.from_numpy(np.stack([places for _, places in found], axis=1))


def sort_into_grid(data: FactorDataset) -> FactorDataset:
    """Return the rows as a grid without a table if every combination of factors occurs once, else unchanged."""
    if data.table is None or not data.factors or bool((data.table < 0).any()):
        return data
    positions = data.grid_positions(data.table)
    order = positions.argsort(stable=True)
    every = torch.arange(len(data)).to(positions)
    if math.prod(data.sizes) != len(data) or not torch.equal(positions[order], every):
        return data
    if torch.equal(positions, every):
        return replace(data, table=None)
    pixels = replace(data.pixels, stored=data.pixels.stored[order])
    held_out = None if data.held_out is None else positions[data.held_out].sort().values
    return replace(data, pixels=pixels, table=None, held_out=held_out)


@contextmanager
def _open_npy(path: Path, key: str) -> Iterator[tuple[tuple[int, ...], np.dtype, IO[bytes]]]:
    """Yield shape and type of an array in an npz file, and the file at the start of its data."""
    with (
        explain_errors(path, f"an npz file with '{key}'"),
        zipfile.ZipFile(path) as archive,
        archive.open(_name_member(archive, key)) as member,
    ):
        yield *read_npy_header(member, f"{path}: '{key}'"), member


def read_npy_header(file: Any, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and type of the array in an open NPY file; raise unless it is a plain one in C order."""
    first = np.lib.format.read_magic(file) == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise DataError(f"{name} ({dtype}) is not a plain array in C order; save it as one.")
    return shape, dtype


def _name_member(archive: zipfile.ZipFile, key: str) -> str:
    """Return the name of an array in an npz file; raise if it is encrypted, which zipfile reports oddly."""
    if archive.getinfo(f"{key}.npy").flag_bits & 1:
        raise ValueError(f"{key}.npy is encrypted")
    return f"{key}.npy"


def _read_pieces(path: Path, key: str, rows: int) -> Iterator[np.ndarray]:
    with _open_npy(path, key) as (shape, dtype, member):
        count, row = (shape[0], shape[1:]) if shape else (1, ())
        for first in range(0, count, rows):
            wanted = min(rows, count - first)
            size = wanted * math.prod(row) * dtype.itemsize
            data = member.read(size)
            if len(data) != size:
                raise ValueError(f"'{key}' ends before its {count} rows")
            yield np.frombuffer(bytearray(data), dtype).reshape(wanted, *row)
