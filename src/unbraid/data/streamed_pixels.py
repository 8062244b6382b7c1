"""Observations that stay on disk and are read by rows; training prefetches them (`unbraid.training.feed`).

They have the values, the content hash and so the run ids of the same array in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.data.factors import Pixels
from unbraid.data.row_files import RowFile
from unbraid.errors import DataError
from unbraid.memory import available_memory
from unbraid.types import Shape

MAX_SHARE_OF_MEMORY = 1 / 4
"""Data that need more than this share of the available memory are streamed, unless the user decides."""

Stream = Literal["auto"] | bool
Channels = Literal["none", "first", "last"]


def streams(stream: Stream, nbytes: int) -> bool:
    """Return whether data of so many bytes are streamed: as `stream` says, or if they exceed a share of the memory.

    On a GPU its own free memory counts, too, because data in memory are kept there.
    """
    if stream != "auto":
        return stream
    device = torch.get_default_device()
    free = [available_memory(), *([torch.cuda.mem_get_info(device)[0]] if device.type == "cuda" else [])]
    return nbytes > MAX_SHARE_OF_MEMORY * min(free)


class Range(NamedTuple):
    """The smallest and the largest value, and whether every value is a whole number of 255ths."""

    low: float
    high: float
    bytes: bool


UNIT = Range(0.0, 1.0, True)


@dataclass(frozen=True)
class StreamedPixels(Pixels):
    """Rows of a file. `stored` holds no rows, but has the type and the device that they would have in memory.

    `channels` says where those of the file are: `none` for vectors, and for grey images [n, h, w].
    """

    file: RowFile | None = None
    channels: Channels = "first"
    range: Range = UNIT

    streamed: ClassVar[bool] = True

    @property
    def rows(self) -> "StreamedPixels":
        return self

    @property
    def _version(self) -> tuple[int, int]:
        """Change with the file, as the `_version` of a tensor does with its values."""
        return self._file.version

    @property
    def _file(self) -> RowFile:
        assert self.file is not None
        return self.file

    def __len__(self) -> int:
        return self._file.count

    def __getitem__(self, index: Tensor) -> Tensor:
        return self.unpack(self.read(index.cpu()).to(self.stored.device))

    def find_range(self) -> tuple[float, float]:
        return self.range.low, self.range.high

    def read(self, index: Tensor) -> Tensor:
        """Return rows [*index, *shape] as the file holds them, with channels first; the index is on the CPU."""
        return self._arrange(self._file.read(index.flatten().numpy())).unflatten(0, index.shape)

    def unpack(self, rows: Tensor) -> Tensor:
        """Return what `read` returned as float32, in the values that the array would have in memory."""
        if rows.dtype == torch.uint8 and not self.bits:
            return rows.to(torch.float32).div_(255)
        rows = rows.to(torch.float32)
        if self.bits or len(self.shape) == 1:
            return rows
        rows = rows.clamp(0, 1)
        return (rows * 255).round() / 255 if self.stored.dtype == torch.uint8 else rows

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the bytes that `stored` would hold in memory, in order."""
        for chunk in self._file.chunks():
            rows = self._arrange(chunk)
            if self.bits:
                yield np.packbits(rows.flatten(1).numpy(), axis=1)
            elif rows.dtype == torch.uint8:
                yield rows.numpy()
            elif self.stored.dtype == torch.uint8:
                yield (self.unpack(rows) * 255).round().to(torch.uint8).numpy()
            else:
                yield self.unpack(rows).numpy()

    def _arrange(self, rows: np.ndarray) -> Tensor:
        native = rows.astype(rows.dtype.newbyteorder("="), copy=False)
        tensor = torch.from_numpy(native.view(np.uint8) if native.dtype == np.bool_ else native)
        if self.channels == "last":
            return tensor.movedim(-1, 1).contiguous()
        return tensor.view(len(tensor), *self.shape)


def stream_rows(file: RowFile, shape: Shape, channels: Channels, name: str, checked: bool = False) -> StreamedPixels:
    """Return the rows of a file as observations of a shape, after one pass that checks their values.

    Bytes that are `checked` already, because we wrote them, need no pass.
    """
    if file.dtype == np.bool_:
        return StreamedPixels(torch.empty(0, 0, dtype=torch.uint8), shape, True, file, channels)
    if file.dtype.kind not in "uf" or (file.dtype.kind == "u" and file.dtype != np.uint8):
        raise DataError(f"{name} holds {file.dtype}; use uint8 (0 … 255), bool or float.")
    found = UNIT if checked else _measure(file, name)
    as_bytes = file.dtype == np.uint8 or (found.bytes and len(shape) == 3)
    return StreamedPixels(
        torch.empty(0, *shape, dtype=torch.uint8 if as_bytes else torch.float32), shape, False, file, channels, found
    )


def _measure(file: RowFile, name: str) -> Range:
    low, high, exact, row = np.inf, -np.inf, True, 0
    for chunk in file.chunks():
        if file.dtype == np.uint8:
            low, high = 0, max(high, int(chunk.max(initial=0)))
            if high > 1:
                return UNIT
            continue
        values = chunk.astype(np.float32)
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        if not finite.all():
            raise DataError(f"{name} has NaN or infinite values, first in row {row + int((~finite).argmax())}.")
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        if exact:
            clipped = values.clip(0, 1)
            exact = bool(np.array_equal(np.round(clipped * np.float32(255)) / np.float32(255), clipped))
        row += len(chunk)
    if file.dtype == np.uint8 and high == 1:
        raise DataError(f"{name} holds bytes 0 and 1 only, which as bytes are black; pass it as x.astype(bool).")
    return Range(low, high, exact)
