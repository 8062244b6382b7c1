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
    """Rows of a modality, stored or computed."""

    @property
    def shape(self) -> Shape:
        """Shape of one row."""
        ...

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that determines the rows, in order: tensors, and facts with a stable `repr`."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return rows as float32 [*index, *shape]."""
        ...

    def to(self, device: torch.device | str) -> "Values": ...


@dataclass(frozen=True)
class ClassLabels:
    """Class labels [n] as one-hot rows; -1 means that a row has no class, and gives zeros."""

    stored: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.stored) and not (int(self.stored.min()) >= -1 and int(self.stored.max()) < len(self.classes)):
            raise DataError(f"Classes must be from 0 to {len(self.classes) - 1}, or -1 for none.")

    @property
    def shape(self) -> Shape:
        return (len(self.classes),)

    @property
    def content(self) -> tuple[Any, ...]:
        return (self.stored, self.classes)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Tensor) -> Tensor:
        return (self.stored[index].unsqueeze(-1) == torch.arange(*self.shape, device=index.device)).to(torch.float32)

    def to(self, device: torch.device | str) -> "ClassLabels":
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
        """Names of a label's classes; empty for images and vectors."""
        return self.values.classes if isinstance(self.values, ClassLabels) else ()

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that determines the rows."""
        return (self.name, self.kind, *self.values.content, self.present)

    def rows(self, index: Tensor) -> Tensor:
        """Return observations [*index, *shape] as float32, zeros where they are missing."""
        return self._blank_missing(self.values[index], index)

    def expected(self, index: Tensor) -> Tensor:
        """Return `rows` without the noise that the data set may add: the means that a perfect decoder returns."""
        read = getattr(self.values, "expected", self.values.__getitem__)  # only values with noise have `expected`
        return self._blank_missing(read(index), index)

    def _blank_missing(self, rows: Tensor, index: Tensor) -> Tensor:
        if self.present is None:
            return rows
        present = self.present[index]
        return torch.where(present.view(*present.shape, *[1] * len(self.shape)), rows, 0.0)

    def to(self, device: torch.device | str) -> "Modality":
        present = None if self.present is None else self.present.to(device)
        return replace(self, values=self.values.to(device), present=present)
