"""Images and their factors of variation, stored on the device as bytes or bits and cast batch by batch."""

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.data.modality import Modality
from unbraid.errors import DataError, unknown
from unbraid.kernels import allows_kernels
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

    streamed: ClassVar[bool] = False
    """True if the rows stay on disk (`unbraid.data.streamed_pixels`)."""

    @property
    def rows(self) -> Any:
        """All rows: a tensor, or an object with `chunks` of them."""
        return self.stored

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.rows, self.shape, self.bits)

    def __len__(self) -> int:
        return self.stored.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        if self.stored.is_cuda and self.stored.dtype == torch.uint8 and TRITON and allows_kernels():
            from unbraid.data.gather_kernel import gather_rows

            return gather_rows(self.stored, index, math.prod(self.shape), self.bits).unflatten(-1, self.shape)
        rows = self.stored[index]
        if self.bits:
            shifts = torch.arange(7, -1, -1, device=rows.device, dtype=torch.uint8)
            bits = ((rows[..., None] >> shifts) & 1).flatten(-2)[..., : math.prod(self.shape)]
            return bits.to(torch.float32).unflatten(-1, self.shape)
        return rows.to(torch.float32) / 255 if rows.dtype == torch.uint8 else rows

    def find_range(self) -> tuple[float, float]:
        """Return the smallest and the largest stored value."""
        return float(self.stored.min()), float(self.stored.max())

    def to(self, device: torch.device | str) -> "Pixels":
        return replace(self, stored=self.stored.to(device))


def pack_bits(images: Tensor) -> Tensor:
    """Return boolean images [n, …] as bytes [n, ceil(pixels / 8)], highest bit first."""
    flat = images.flatten(1).to(torch.uint8)
    pixels = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).unflatten(1, (-1, 8)).unbind(-1)
    return functools.reduce(lambda packed, pixel: (packed << 1) | pixel, pixels)


@dataclass(frozen=True)
class FactorDataset:
    """Observations with their factors of variation.

    Methods take rows as an `index`, a tensor of whole numbers of any shape, and return tensors [*index, …].

    Without a `table` the factors form a complete grid: row n holds the values that n spells in mixed radix, last
    factor fastest, and every combination occurs once. With a `table` [n, factors] any set of rows is possible, and -1
    stands for a missing label. `held_out` holds the rows of the data set's own test split, where it has one. `source`
    says where the data come from.
    """

    name: str
    pixels: Pixels
    factors: tuple[Factor, ...] = ()
    table: Tensor | None = None
    held_out: Tensor | None = None
    source: str = ""

    multimodal: ClassVar[bool] = False
    """True if observations have several named modalities (`unbraid.data.modalities`)."""

    def __post_init__(self) -> None:
        if self.table is None and self.factors and (count := math.prod(self.sizes)) != len(self):
            raise DataError(f"{self.name}: factor sizes {self.sizes} make {count} combinations, not {len(self)}.")
        expected = (len(self), len(self.factors))
        if self.table is not None and tuple(self.table.shape) != expected:
            raise DataError(f"{self.name}: the factor table is {tuple(self.table.shape)}, expected {expected}.")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> Shape:
        """Shape of one observation."""
        return self.pixels.shape

    @property
    def layout(self) -> Layout:
        """Shape of one observation; for multimodal data, the shape of each modality by name."""
        return self.shape

    @property
    def modalities(self) -> dict[str, Modality]:
        """Modalities by name; a single one is called x."""
        return {"x": Modality("x", "image" if len(self.shape) == 3 else "vector", self.pixels)}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each factor."""
        return tuple(f.size for f in self.factors)

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.factors)

    @property
    def varying_factors(self) -> list[int]:
        """Columns of the factors that have more than one value."""
        return [column for column, size in enumerate(self.sizes) if size > 1]

    @property
    def is_grid(self) -> bool:
        """True if every combination of factor values occurs exactly once, in mixed-radix order."""
        return bool(self.factors) and self.table is None

    @property
    def device(self) -> torch.device:
        return self.pixels.stored.device

    def to(self, device: torch.device | str) -> "FactorDataset":
        if torch.device(device) == self.device:
            return self  # with its splits and its content hash
        return replace(self, **self._fields_on(device))

    def _fields_on(self, device: torch.device | str) -> dict[str, Any]:
        fields = {"pixels": self.pixels, "table": self.table, "held_out": self.held_out}
        return {name: None if field is None else field.to(device) for name, field in fields.items()}

    def images(self, index: Tensor) -> Tensor:
        """Return observations [*index, *shape] as float32: images in [0, 1], floats as stored."""
        return self.pixels[index]

    def observed(self, index: Tensor) -> dict[str, Tensor]:
        """Return observations [*index, *shape] by modality, zeros where one is missing."""
        return {"x": self.images(index)}

    def present(self, index: Tensor) -> Tensor | None:
        """Return a mask [*index, modalities] of what rows have, or None if no row of the data lacks anything."""
        return None

    def has(self, modality: str, index: Tensor) -> Tensor:
        """Return which rows have a modality [*index]."""
        present = self.modalities[modality].present
        return torch.ones_like(index, dtype=torch.bool) if present is None else present[index]

    def inputs(self, index: Tensor) -> Inputs:
        """Return rows as a model encodes them."""
        return Inputs(dict(self.observed(index)), self.present(index))

    def has_labels(self, index: Tensor, columns: Sequence[int] | None = None) -> Tensor:
        """Return which rows [*index] have a label of all these factors; None means every factor."""
        values = self.values_of(index)
        return ((values if columns is None else values[..., list(columns)]) >= 0).all(-1)

    def factor_position(self, name: str) -> int:
        if name not in self.factor_names:
            raise unknown("factor", name, self.factor_names, of=self.name)
        return self.factor_names.index(name)

    def values_of(self, index: Tensor) -> Tensor:
        """Return the factor values [*index, factors] of rows."""
        if self.table is not None:
            return self.table[index]
        columns = []
        for size in reversed(self.sizes):
            columns.append(index % size)
            index = index // size
        return torch.stack(columns[::-1], dim=-1)

    def index_of(self, values: Tensor) -> Tensor:
        """Return the rows [*n] of factor values [*n, factors]: the inverse of `values_of`.

        With a table, return the first row that has them; a combination that does not occur or lacks a label (-1)
        raises a `DataError`. In a grid every row has its labels, so -1 gives a row that does not exist.
        """
        wanted = self.grid_positions(values)
        if self.table is None:
            return wanted
        positions = self.grid_positions(self.table)
        order = positions.argsort(stable=True)
        found = order[torch.searchsorted(positions[order], wanted).clamp_max(len(self) - 1)]
        missing = (positions[found] != wanted) | (values < 0).any(-1)
        if bool(missing.any()):
            raise DataError(f"{self.name} has no row with factor values {values[missing][0].tolist()}.")
        return found

    def grid_positions(self, values: Tensor) -> Tensor:
        """Return positions [*n] of factor values [*n, factors] in a full grid, past its end if a label is missing."""
        position = torch.zeros_like(values[..., 0])
        for column, size in enumerate(self.sizes):
            position = position * size + values[..., column]
        return position.masked_fill((values < 0).any(-1), min(math.prod(self.sizes), 2**62))

    def content_hash(self) -> str:
        """Return the SHA-256 of observations, factor values and test rows, equal on every machine and device."""
        versions = self._list_versions()
        cached = self.__dict__.get("_hash")
        if cached is None or cached[0] != versions:
            cached = self.__dict__["_hash"] = (versions, self._digest())  # takes seconds for a large data set
        return cached[1]

    def take_hash(self, source: "FactorDataset") -> None:
        """Hash `source`, which holds the same in the memory of the CPU: copying that of a GPU back takes longer."""
        self.__dict__["_hash"] = (self._list_versions(), source.content_hash())

    def _list_versions(self) -> list[Any]:
        """Return the versions of the content, which change with every write."""
        return [part._version for part in self._content() if hasattr(part, "_version")]

    def _content(self) -> list[Any]:
        return [part for part in (self.pixels.rows, self.table, self.held_out) if part is not None]

    def _digest(self) -> str:
        facts = (self.shape, self.pixels.bits, str(self.pixels.stored.dtype), self.sizes, self.factor_names)
        return hash_content(repr(facts), self._content())


def hash_content(text: str, parts: Iterable[Any]) -> str:
    """Return the SHA-256 of a text, the bytes of tensors and streamed rows, and the `repr` of everything else."""
    digest = hashlib.sha256(text.encode())
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(np.ascontiguousarray(part.cpu().numpy()).data)
        elif hasattr(part, "chunks"):
            for chunk in part.chunks():
                digest.update(np.ascontiguousarray(chunk).data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def factor_numbers(data: FactorDataset, index: Tensor) -> Tensor:
    """Return the real values [*index, factors] of rows, for models that take factors as inputs; NaN for no label."""
    places = data.values_of(index)
    columns = []
    for factor, place in zip(data.factors, places.unbind(-1), strict=True):
        if factor.values is None or any(isinstance(value, str) for value in factor.values):
            raise DataError(f"{data.name}: the values of factor {factor.name} are not numbers.")
        values = torch.tensor(factor.values, dtype=torch.float32, device=places.device)
        columns.append(values[place.clamp_min(0)].masked_fill(place < 0, math.nan))
    return torch.stack(columns, dim=-1)
