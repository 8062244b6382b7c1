"""Images and the factors that made them, kept on the device as bytes or bits and cast batch by batch."""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.data.modality import Modality
from unbraid.errors import DataError, unknown
from unbraid.noise import TRITON
from unbraid.types import Inputs, Layout, Shape


class Factor(NamedTuple):
    """A factor of variation with a finite number of values; `values` names them where they mean something."""

    name: str
    size: int
    values: tuple[float, ...] | tuple[str, ...] | None = None


@dataclass(frozen=True)
class Pixels:
    """Observations in compact storage.

    `stored` is [n, *shape] of uint8 (a pixel is byte / 255), [n, ceil(pixels / 8)] of uint8 when `bits` (a pixel is
    one bit, highest first, as numpy.packbits writes them), or [n, *shape] of float32, taken as it is.
    """

    stored: Tensor
    shape: Shape
    bits: bool = False

    @property
    def content(self) -> tuple[Any, ...]:
        """All that the rows depend on."""
        return (self.stored, self.shape, self.bits)

    def __len__(self) -> int:
        return self.stored.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows as float32, shape [*index.shape, *shape]."""
        if self.stored.is_cuda and self.stored.dtype == torch.uint8 and TRITON:
            from unbraid.data.gather_kernel import gather_rows

            return gather_rows(self.stored, index, math.prod(self.shape), self.bits).unflatten(-1, self.shape)
        rows = self.stored[index]
        if self.bits:
            shifts = torch.arange(7, -1, -1, device=rows.device, dtype=torch.uint8)
            single = (rows[..., None] >> shifts) & 1
            rows = single.flatten(-2)[..., : math.prod(self.shape)]
            return rows.to(torch.float32).unflatten(-1, self.shape)
        if rows.dtype == torch.uint8:
            return rows.to(torch.float32) / 255
        return rows

    def to(self, device: torch.device | str) -> "Pixels":
        """The same pixels on a device."""
        return replace(self, stored=self.stored.to(device))


def pack_bits(images: Tensor) -> Tensor:
    """Boolean images [n, …] as bytes [n, ceil(pixels / 8)], highest bit first."""
    flat = images.flatten(1).to(torch.uint8)
    pixels = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).unflatten(1, (-1, 8)).unbind(-1)
    return functools.reduce(lambda packed, pixel: (packed << 1) | pixel, pixels)


@dataclass(frozen=True)
class FactorDataset:
    """Observations with their factors of variation.

    Rows are asked for by an `index` of whole numbers, a tensor of any shape [*index], and answered in that shape.

    Without a `table` the factors form a complete grid: row n holds the values that n spells in mixed radix, last
    factor fastest, and every combination occurs once. With a `table` [n, factors] any set of rows is possible, and -1
    stands for a label that is missing.
    `held_out` are the rows of the data set's own test split, where it has one; `source` says in words where the data
    come from.
    """

    name: str
    pixels: Pixels
    factors: tuple[Factor, ...] = ()
    table: Tensor | None = None
    held_out: Tensor | None = None
    source: str = ""

    multimodal: ClassVar[bool] = False
    """Whether observations have modalities of their own names (`unbraid.data.modalities`)."""

    def __post_init__(self) -> None:
        if self.table is None and self.factors and math.prod(self.sizes) != len(self):
            count = math.prod(self.sizes)
            raise DataError(f"{self.name}: factor sizes {self.sizes} make {count} combinations, not {len(self)}.")
        if self.table is not None and tuple(self.table.shape) != (len(self), len(self.factors)):
            expected = (len(self), len(self.factors))
            raise DataError(f"{self.name}: the factor table is {tuple(self.table.shape)}, expected {expected}.")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> Shape:
        """Shape of one observation."""
        return self.pixels.shape

    @property
    def layout(self) -> Layout:
        """Shape of one observation; of multimodal data, that of each modality by name."""
        return self.shape

    @property
    def modalities(self) -> dict[str, Modality]:
        """Modalities by name; the only one is called x."""
        return {"x": Modality("x", "image" if len(self.shape) == 3 else "vector", self.pixels)}

    @property
    def numbers(self) -> int:
        """How many numbers one observation holds."""
        return math.prod(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each factor."""
        return tuple(f.size for f in self.factors)

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Names of the factors, in order."""
        return tuple(f.name for f in self.factors)

    @property
    def varying_factors(self) -> list[int]:
        """Columns of the factors that have more than one value."""
        return [column for column, size in enumerate(self.sizes) if size > 1]

    @property
    def is_grid(self) -> bool:
        """Whether every combination of factor values occurs exactly once, in mixed-radix order."""
        return bool(self.factors) and self.table is None

    @property
    def device(self) -> torch.device:
        """Where the pixels are."""
        return self.pixels.stored.device

    def to(self, device: torch.device | str) -> "FactorDataset":
        """Return the same data on a device."""
        return replace(self, **self._fields_on(device))

    def _fields_on(self, device: torch.device | str) -> dict[str, Any]:
        table = None if self.table is None else self.table.to(device)
        held_out = None if self.held_out is None else self.held_out.to(device)
        return {"pixels": self.pixels.to(device), "table": table, "held_out": held_out}

    def images(self, index: Tensor) -> Tensor:
        """Observations as float32 in [0, 1] (or as stored, for floats), shape [*index, *shape]."""
        return self.pixels[index]

    def observed(self, index: Tensor) -> dict[str, Tensor]:
        """Return observations by modality; the only one is called x."""
        return {"x": self.images(index)}

    def present(self, index: Tensor) -> Tensor | None:
        """Return which modalities rows have [*index, modalities]; None if nothing is missing in all the data."""
        return None

    def has(self, modality: str, index: Tensor) -> Tensor:
        """Return which rows have a modality [*index]."""
        present = self.modalities[modality].present
        return torch.ones_like(index, dtype=torch.bool) if present is None else present[index]

    def inputs(self, index: Tensor) -> Inputs:
        """Return rows as a model encodes them."""
        return Inputs(self.observed(index), self.present(index))

    def has_labels(self, index: Tensor, columns: Sequence[int] | None = None) -> Tensor:
        """Whether rows [*index] have a label of all these factors (columns; None means every factor)."""
        values = self.values_of(index)
        return ((values if columns is None else values[..., list(columns)]) >= 0).all(-1)

    def factor_position(self, name: str) -> int:
        """Column of a factor."""
        if name not in self.factor_names:
            raise unknown("factor", name, self.factor_names, of=self.name)
        return self.factor_names.index(name)

    def values_of(self, index: Tensor) -> Tensor:
        """Factor values [*index, factors] of rows."""
        if self.table is not None:
            return self.table[index]
        columns = []
        for size in reversed(self.sizes):
            columns.append(index % size)
            index = index // size
        return torch.stack(columns[::-1], dim=-1)

    def index_of(self, values: Tensor) -> Tensor:
        """Rows [*n] of factor values [*n, factors]: the inverse of `values_of`.

        With a table, the first row that has them; a combination that does not occur, or has a missing label (-1), is
        a `DataError`. In a grid, whose rows have all their labels, -1 gives a row that does not exist.
        """
        if self.table is None:
            return self._code(values)
        wanted, codes = self._code(values), self._code(self.table)
        order = codes.argsort(stable=True)
        place = torch.searchsorted(codes[order], wanted).clamp_max(len(self) - 1)
        found = order[place]
        missing = (codes[found] != wanted) | (values < 0).any(-1)
        if bool(missing.any()):
            raise DataError(f"{self.name} has no row with factor values {values[missing][0].tolist()}.")
        return found

    def content_hash(self) -> str:
        """SHA-256 of pixels, factor values and test rows, equal on every machine and device."""
        tensors = [t for t in (self.pixels.stored, self.table, self.held_out) if t is not None]
        versions = [t._version for t in tensors]  # grow whenever somebody writes into a tensor
        known = self.__dict__.get("_content")
        if known is None or known[0] != versions:
            known = self.__dict__["_content"] = (versions, self._digest(tensors))  # seconds for a large data set
        return known[1]

    def _digest(self, tensors: list[Tensor]) -> str:
        facts = (self.shape, self.pixels.bits, str(self.pixels.stored.dtype), self.sizes, self.factor_names)
        digest = hashlib.sha256(repr(facts).encode())
        for tensor in tensors:
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
        return digest.hexdigest()

    def _code(self, values: Tensor) -> Tensor:
        """Factor values as one number each, in the order of a full grid; past its end where a label is missing."""
        code = torch.zeros_like(values[..., 0])
        for column, size in enumerate(self.sizes):
            code = code * size + values[..., column]
        return code.masked_fill((values < 0).any(-1), min(math.prod(self.sizes), 2**62))
