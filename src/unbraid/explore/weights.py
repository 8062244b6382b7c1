r"""Weights as bytes for the page: float32, float16, or fixed point with a scale for each row.

Fixed point of N bits stores round(w / s) with s = max |w| / (2^(N-1) - 1) for each row of a tensor's first axis. At 16
bits it is about 16 times as exact as float16, because weights of one row have one order of magnitude. High and low
bytes lie apart: gzip shortens the high ones alone. Small tensors, as biases, stay float32.
"""

import gzip
import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from unbraid.errors import UsageError

MIN_NUMBERS_TO_ROUND = 2048
"""Smaller tensors are stored as they are."""

Precision = str | int
"""`float32`, `float16`, or the number of bits of fixed point, 4 to 16."""


class Weights:
    """Constants of several graphs, each stored once."""

    def __init__(self, precision: Precision) -> None:
        if precision not in ("float32", "float16") and not (isinstance(precision, int) and 4 <= precision <= 16):
            raise UsageError(f"weights must be float32, float16 or 4 to 16 (bits), not {precision}.")
        self.precision = precision
        self.records: list[list[Any]] = []
        self._parts: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def add(self, tensors: Iterable[Tensor]) -> list[int]:
        """Store tensors and return their places; equal ones have the same place."""
        return [self._add(np.ascontiguousarray(tensor.numpy())) for tensor in tensors]

    def _add(self, array: np.ndarray) -> int:
        key = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).digest()
        if key not in self._known:
            self._known[key] = len(self.records)
            record, part = _encode(array, self.precision)
            self.records.append(record)
            self._parts.append(part)
        return self._known[key]

    def compressed(self, level: int = 9) -> bytes:
        """Return all bytes, compressed; a lower `level` is faster and larger."""
        return gzip.compress(b"".join(self._parts), level, mtime=0)


def _encode(array: np.ndarray, precision: Precision) -> tuple[list[Any], bytes]:
    """Return [kind, numbers, rows, bits] and bytes of one tensor."""
    exact = array.size < MIN_NUMBERS_TO_ROUND or not np.isfinite(array).all() or _is_whole(array)
    if precision == "float32" or exact:
        return ["float32", array.size], array.astype("<f4").tobytes()
    if precision == "float16":
        halves = array.astype("<f2").tobytes()
        return ["float16", array.size], halves[1::2] + halves[::2]
    bits = int(precision)
    scale, fixed = to_fixed(array, bits)
    low = np.zeros(0, np.uint8)
    if bits > 8:
        remainder = (fixed & ((1 << (bits - 8)) - 1)).astype(np.uint8)
        planes = np.unpackbits(remainder[:, None], axis=1)[:, 16 - bits :]
        low, fixed = np.packbits(planes), fixed >> (bits - 8)
    parts = (scale.astype("<f4"), fixed.astype(np.int8), low)
    return ["fixed", array.size, len(scale), bits], b"".join(part.tobytes() for part in parts)


def to_fixed(array: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of each row [rows] and the whole numbers [size]."""
    rows = array.reshape(len(array), -1)
    scale = np.abs(rows).max(1) / (2 ** (bits - 1) - 1)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return scale, np.rint(rows / scale[:, None]).astype(np.int64).ravel()


def _is_whole(array: np.ndarray) -> bool:
    """Return True if a tensor holds whole numbers, such as positions."""
    return bool((array == np.rint(array)).all())
