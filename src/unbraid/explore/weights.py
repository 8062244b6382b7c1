r"""Weights as bytes for the page: float32, float16, or fixed point with a scale for each row.

Fixed point of N bits stores round(w / s) with s = max |w| / (2^(N-1) - 1) for each row of a tensor's first axis. At 16
bits it is about 16 times as exact as float16, because weights of one row have one order of magnitude. High and low
bits lie apart: gzip shortens the high ones alone. Small tensors, as biases, stay float32. Fewer bits than 8 are for
layers whose errors cancel on the data (see rounding.py).

Rounding one layer disturbs a picture about as much as rounding another, whatever their sizes s. With error 4^-N of each
and s N bits in all, the sum of errors is least for N = c - log2(s) / 2: a tensor four times as large has one bit less.
"""

import gzip
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.explore.rounding import Moments, key_of, round_on_data

FEWEST_BITS_ALONE = 8
"""Fewest bits of weights that are rounded one by one where moments of other layers allow fewer."""

TYPICAL_NUMBERS = 65_536
"""Numbers of a tensor that has just the bits of the chosen precision."""

MOST_BITS = 24

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

    def add(
        self, tensors: Iterable[Tensor], precision: Precision | None = None, moments: Moments | None = None
    ) -> list[int]:
        """Store tensors and return their places; equal ones have the place of the first.

        `precision` is another than that of most tensors. With `moments`, layers are rounded such that errors cancel.
        """
        chosen = self.precision if precision is None else precision
        return [self._add(np.ascontiguousarray(tensor.numpy()), chosen, moments or {}) for tensor in tensors]

    def _add(self, array: np.ndarray, precision: Precision, moments: Moments) -> int:
        key = key_of(array)
        if key not in self._known:
            self._known[key] = len(self.records)
            if isinstance(precision, int):
                fewest = FEWEST_BITS_ALONE if moments and key not in moments else 4
                precision = bits_for(array.size, precision, fewest)
            record, part = _encode(array, precision, moments.get(key))
            self.records.append(record)
            self._parts.append(part)
        return self._known[key]

    def compressed(self, level: int = 9) -> bytes:
        """Return all bytes, compressed; a lower `level` is faster and larger."""
        return gzip.compress(b"".join(self._parts), level, mtime=0)


def _encode(array: np.ndarray, precision: Precision, moments: np.ndarray | None) -> tuple[list[Any], bytes]:
    """Return [kind, numbers, rows, bits] and bytes of one tensor."""
    exact = array.size < MIN_NUMBERS_TO_ROUND or not np.isfinite(array).all() or _is_whole(array)
    if precision == "float32" or exact:
        return ["float32", array.size], array.astype("<f4").tobytes()
    if precision == "float16":
        halves = array.astype("<f2").tobytes()
        return ["float16", array.size], halves[1::2] + halves[::2]
    bits = int(precision)
    scale, fixed = to_fixed(array, bits)
    if moments is not None:
        fixed = round_on_data(array, scale, 2 ** (bits - 1) - 1, moments)
    low = np.zeros(0, np.uint8)
    if bits > 8:
        remainder = (fixed & ((1 << (bits - 8)) - 1)).astype(">u2")
        planes = np.unpackbits(remainder.view(np.uint8).reshape(-1, 2), axis=1)[:, 24 - bits :]
        low, fixed = np.packbits(planes), fixed >> (bits - 8)
    parts = (scale.astype("<f4"), fixed.astype(np.int8), low)
    return ["fixed", array.size, len(scale), bits], b"".join(part.tobytes() for part in parts)


def bits_for(size: int, bits: int, fewest: int = 4) -> int:
    """Return the bits of a tensor's numbers where one of typical size has `bits`."""
    return min(MOST_BITS, max(fewest, bits + round(math.log2(TYPICAL_NUMBERS / max(1, size)) / 2)))


def to_fixed(array: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of each row [rows] and the whole numbers [size]."""
    rows = array.reshape(len(array), -1)
    scale = np.abs(rows).max(1) / (2 ** (bits - 1) - 1)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return scale, np.rint(rows / scale[:, None]).astype(np.int64).ravel()


def _is_whole(array: np.ndarray) -> bool:
    """Return True if a tensor holds whole numbers, such as positions."""
    return bool((array == np.rint(array)).all())
