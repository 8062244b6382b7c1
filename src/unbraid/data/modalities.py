"""Observations of several modalities: images, vectors and labels of the same things, any of which may be missing.

Everything lies on the device and is gathered by row, so that a training step can be recorded. A modality that a row
does not have holds zeros there, and `present` says so.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.errors import DataError, UsageError
from unbraid.types import Shape

Kind = Literal["image", "vector", "label"]

PRESENT = "present/"
"""What stands before a modality's name for the mask of the rows that have it, beside the observations."""


@runtime_checkable
class Values(Protocol):
    """Where a modality's rows come from: stored, or computed from what is stored."""

    @property
    def shape(self) -> Shape:
        """Shape of one row."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Tensor:
        """Rows as float32 [*index.shape, *shape]."""
        ...

    def to(self, device: torch.device | str) -> "Values":
        """The same rows on a device."""
        ...

    @property
    def content(self) -> tuple[Any, ...]:
        """All that the rows depend on, in order: tensors, and facts with a stable `repr`."""
        ...


@runtime_checkable
class Noisy(Protocol):
    """Values to which the data add noise."""

    def expected(self, index: Tensor) -> Tensor:
        """Means [*index.shape, *shape] over the noise."""
        ...


@dataclass(frozen=True)
class Labels:
    """Classes [n] as one-hot rows; a class of -1 is no class, and its row is zero."""

    stored: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.stored) and not (int(self.stored.min()) >= -1 and int(self.stored.max()) < len(self.classes)):
            raise DataError(f"Classes must be from 0 to {len(self.classes) - 1}, or -1 for none.")

    @property
    def shape(self) -> Shape:
        """One number for each class."""
        return (len(self.classes),)

    @property
    def content(self) -> tuple[Any, ...]:
        """The classes of all rows, and their names."""
        return (self.stored, self.classes)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Tensor) -> Tensor:
        """One-hot rows [*index.shape, classes]."""
        return (self.stored[index].unsqueeze(-1) == torch.arange(*self.shape, device=index.device)).to(torch.float32)

    def to(self, device: torch.device | str) -> "Labels":
        """The same classes on a device."""
        return replace(self, stored=self.stored.to(device))


@dataclass(frozen=True)
class Modality:
    """One way in which things are observed; `present` [n] says which rows have it, None that all do."""

    name: str
    kind: Kind
    values: Values
    present: Tensor | None = None

    @property
    def shape(self) -> Shape:
        """Shape of one observation."""
        return self.values.shape

    @property
    def content(self) -> tuple[Any, ...]:
        """All that its rows depend on."""
        return (self.name, self.kind, *self.values.content, self.present)

    def rows(self, index: Tensor) -> Tensor:
        """Observations [*index.shape, *shape] as float32, zero where there are none."""
        return self._where_present(self.values[index], index)

    def expected(self, index: Tensor) -> Tensor:
        """The same without the noise that the data add, if they do: means, as a perfect decoder says them."""
        values = self.values
        return self._where_present(values.expected(index) if isinstance(values, Noisy) else values[index], index)

    def _where_present(self, found: Tensor, index: Tensor) -> Tensor:
        if self.present is None:
            return found
        there = self.present[index]
        return torch.where(there.view(*there.shape, *[1] * len(self.shape)), found, 0.0)

    def to(self, device: torch.device | str) -> "Modality":
        """The same observations on a device."""
        present = None if self.present is None else self.present.to(device)
        return replace(self, values=self.values.to(device), present=present)


@dataclass(frozen=True)
class MultimodalDataset(FactorDataset):
    """Things that are observed in several modalities, with their factors of variation; made by `multimodal`.

    `pixels` has as many rows as there are things, and nothing in them: whoever asks for *the* images of such data gets
    an error that names the modalities.
    """

    modalities: dict[str, Modality] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """There is no single shape."""
        raise self._refusal()

    @property
    def layout(self) -> dict[str, Shape]:
        """Shape of one observation of each modality."""
        return {name: modality.shape for name, modality in self.modalities.items()}

    @property
    def numbers(self) -> int:
        """How many numbers the observations of one thing hold."""
        return sum(math.prod(shape) for shape in self.layout.values())

    def images(self, index: Tensor) -> Tensor:
        """There is no single modality to look at."""
        raise self._refusal()

    def observed(self, index: Tensor) -> dict[str, Tensor]:
        """Rows of every modality [*index, *shape]; zeros where one is missing."""
        return {name: modality.rows(index) for name, modality in self.modalities.items()}

    def present(self, index: Tensor) -> dict[str, Tensor] | None:
        """Whether rows have each modality [*index], or None where nothing is missing in all the data."""
        if all(modality.present is None for modality in self.modalities.values()):
            return None
        every = torch.ones_like(index, dtype=torch.bool)
        return {n: every if m.present is None else m.present[index] for n, m in self.modalities.items()}

    def inputs(self, index: Tensor) -> dict[str, Tensor]:
        """Observations by modality, and under `present/NAME` which of them are there."""
        return {**self.observed(index), **masks(self.present(index))}

    def to(self, device: torch.device | str) -> "MultimodalDataset":
        """The same data on a device."""
        moved = super().to(device)
        assert isinstance(moved, MultimodalDataset)
        return replace(moved, modalities={name: m.to(device) for name, m in self.modalities.items()})

    def content_hash(self) -> str:
        """SHA-256 of all modalities, factor values and test rows, equal on every machine and device."""
        parts = [part for modality in self.modalities.values() for part in modality.content]
        key = (super().content_hash(), [part._version for part in parts if isinstance(part, Tensor)])
        known = self.__dict__.get("_modal_content")
        if known is None or known[0] != key:
            digest = hashlib.sha256(key[0].encode())
            for part in parts:
                digest.update(_bytes(part) if isinstance(part, Tensor) else repr(part).encode())
            known = self.__dict__["_modal_content"] = (key, digest.hexdigest())
        return known[1]

    def _digest(self, tensors: list[Tensor]) -> str:
        digest = hashlib.sha256(repr((len(self), self.sizes, self.factor_names)).encode())
        for tensor in tensors:
            digest.update(_bytes(tensor))
        return digest.hexdigest()

    def _refusal(self) -> UsageError:
        names = ", ".join(self.modalities)
        return UsageError(
            f"This takes observations of one modality, and {self.name} has {len(self.modalities)} ({names}); use "
            "what is for several: run.generate and run.translate for pictures, the scores that look at codes, and for "
            "training an objective such as partitioned-mvae."
        )


def multimodal(
    name: str,
    modalities: Mapping[str, Modality] | list[Modality],
    factors: tuple[Factor, ...] = (),
    table: Tensor | None = None,
    held_out: Tensor | None = None,
    source: str = "",
) -> MultimodalDataset:
    """A data set of modalities with the same number of rows; see `FactorDataset` for the other arguments."""
    listed = list(modalities.values()) if isinstance(modalities, Mapping) else modalities
    if not listed:
        raise DataError(f"{name} has no modality.")
    counts = {modality.name: len(modality.values) for modality in listed}
    if len(counts) < len(listed):
        raise DataError(f"{name} has two modalities of one name.")
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{each} has {count:,} rows" for each, count in counts.items())
        raise DataError(f"The modalities of {name} must have equally many rows: {told}.")
    for modality in listed:
        _check(name, modality)
    rows = torch.zeros(len(listed[0].values), 0, dtype=torch.uint8)
    shapes = {modality.name: modality for modality in listed}
    return MultimodalDataset(name, Pixels(rows, (0,)), factors, table, held_out, source, shapes)


def masks(present: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Masks under the names by which a model looks for them."""
    return {PRESENT + name: mask for name, mask in (present or {}).items()}


def _bytes(tensor: Tensor) -> memoryview:
    return np.ascontiguousarray(tensor.cpu().numpy()).data


def _check(data: str, modality: Modality) -> None:
    name, present = modality.name, modality.present
    if not name.isidentifier() or name == "name" or hasattr(nn.ModuleDict(), name):  # see ModuleDict
        raise DataError(f"{data}: {name!r} cannot name a modality; use letters, digits and _, as in {name[:1]}_1.")
    if (len(modality.shape) == 3) != (modality.kind == "image"):
        raise DataError(f"{data}: an image has 3 dimensions and a {modality.kind} 1; {name} has {modality.shape}.")
    if present is not None and tuple(present.shape) != (len(modality.values),):
        raise DataError(
            f"{data}: {name} says of {len(present)} rows whether it has them, and has {len(modality.values)}."
        )
    if present is not None and not bool(present.any()):
        raise DataError(f"{data}: no row has the modality {name}; leave it out.")
