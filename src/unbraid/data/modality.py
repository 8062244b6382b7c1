"""One modality of a data set: images, vectors or class labels, which some rows may lack."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.types import Shape

Kind = Literal["image", "vector", "label"]


@runtime_checkable
class Values(Protocol):
    """Rows of a modality: stored, or computed from what is stored."""

    @property
    def shape(self) -> Shape:
        """Shape of one row."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return rows as float32 [*index.shape, *shape]."""
        ...

    def to(self, device: torch.device | str) -> "Values":
        """Return the same rows on a device."""
        ...

    @property
    def content(self) -> tuple[Any, ...]:
        """All that the rows depend on, in order: tensors, and facts with a stable `repr`."""
        ...


@runtime_checkable
class NoisyValues(Protocol):
    """Values to which the data set adds noise."""

    def expected(self, index: Tensor) -> Tensor:
        """Return means [*index.shape, *shape] over the noise."""
        ...


@dataclass(frozen=True)
class ClassLabels:
    """Class labels [n] as one-hot rows; a class of -1 means no class, and its row is zero."""

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
        """Return one-hot rows [*index.shape, classes]."""
        return (self.stored[index].unsqueeze(-1) == torch.arange(*self.shape, device=index.device)).to(torch.float32)

    def to(self, device: torch.device | str) -> "ClassLabels":
        """Return the same labels on a device."""
        return replace(self, stored=self.stored.to(device))


@dataclass(frozen=True)
class Modality:
    """Observations of one kind; `present` [n] marks the rows that have one, None means all of them."""

    name: str
    kind: Kind
    values: Values
    present: Tensor | None = None

    @property
    def shape(self) -> Shape:
        """Shape of one observation."""
        return self.values.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of a label; none for images and vectors."""
        return self.values.classes if isinstance(self.values, ClassLabels) else ()

    @property
    def content(self) -> tuple[Any, ...]:
        """All that the rows depend on."""
        return (self.name, self.kind, *self.values.content, self.present)

    def rows(self, index: Tensor) -> Tensor:
        """Return observations [*index.shape, *shape] as float32, zero where they are missing."""
        return self._where_present(self.values[index], index)

    def expected(self, index: Tensor) -> Tensor:
        """Return the same without the noise that the data set may add: the means that a perfect decoder returns."""
        values = self.values
        return self._where_present(values.expected(index) if isinstance(values, NoisyValues) else values[index], index)

    def _where_present(self, found: Tensor, index: Tensor) -> Tensor:
        if self.present is None:
            return found
        present = self.present[index]
        return torch.where(present.view(*present.shape, *[1] * len(self.shape)), found, 0.0)

    def to(self, device: torch.device | str) -> "Modality":
        """Return the same observations on a device."""
        present = None if self.present is None else self.present.to(device)
        return replace(self, values=self.values.to(device), present=present)
