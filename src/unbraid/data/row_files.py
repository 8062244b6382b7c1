"""Arrays on disk that are read by rows: a .npy file, or a memory-mapped array.

Rows are read with `preadv`, not through the memory map: pages of a map count as memory of the process, and a pass over
a large file would fill it.
"""

import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from unbraid.data.file_formats import explain_errors, read_npy_header
from unbraid.errors import DataError

CHUNK_BYTES = 1 << 24
"""Bytes of a chunk in a pass over all rows."""


@dataclass(frozen=True)
class RowFile:
    """The rows [count, *row_shape] of an array that starts at byte `offset` of a file."""

    path: Path
    offset: int
    count: int
    row_shape: tuple[int, ...]
    dtype: np.dtype

    def __post_init__(self) -> None:
        if (found := os.fstat(self._handle).st_size) < self.offset + self.nbytes:
            raise DataError(f"{self.path} is cut off: it has {found:,} bytes and needs {self.offset + self.nbytes:,}.")

    @classmethod
    def open(cls, path: Path) -> "RowFile":
        with explain_errors(path, "a .npy file"), path.open("rb") as file:
            shape, dtype = read_npy_header(file, str(path))
            offset = file.tell()
        if not shape:
            raise DataError(f"{path} holds a single number, not rows.")
        return cls(path, offset, shape[0], tuple(shape[1:]), dtype)

    @classmethod
    def of_memmap(cls, array: np.memmap) -> "RowFile | None":
        """Return the part of a file that an array maps, or None if rows are not adjacent there or were changed."""
        whole = array
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        if array.mode == "c" or array.filename is None or array.ndim == 0 or not array.flags.c_contiguous:
            return None
        offset = whole.offset + array.ctypes.data - whole.ctypes.data
        return cls(Path(array.filename), offset, len(array), array.shape[1:], array.dtype)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.count * self.row_bytes

    @property
    def version(self) -> tuple[int, int]:
        """Numbers that change if somebody writes to the file."""
        facts = os.fstat(self._handle)
        return facts.st_size, facts.st_mtime_ns

    @cached_property
    def _handle(self) -> int:
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}.") from error
        weakref.finalize(self, os.close, handle)
        return handle

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return rows [len(index), *row_shape]; the file is read in its own order."""
        rows = np.empty((len(index), *self.row_shape), self.dtype)
        flat = rows.reshape(len(index), -1).view(np.uint8)
        for place in np.argsort(index, kind="stable").tolist():
            self._fill(flat[place].data, self.offset + int(index[place]) * self.row_bytes)
        return rows

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield all rows in order, several at a time."""
        step = max(1, CHUNK_BYTES // max(1, self.row_bytes))
        for start in range(0, self.count, step):
            rows = np.empty((min(step, self.count - start), *self.row_shape), self.dtype)
            self._fill(rows.reshape(-1).view(np.uint8).data, self.offset + start * self.row_bytes)
            yield rows

    def _fill(self, target: memoryview, offset: int) -> None:
        if not hasattr(os, "preadv"):
            raise DataError(f"This system cannot read {self.path} by rows; load it into memory (data.stream=false).")
        while len(target):
            if not (read := os.preadv(self._handle, [target], offset)):
                raise DataError(f"{self.path} has become shorter since it was opened.")
            target, offset = target[read:], offset + read
