"""Data sets of several modalities: images, vectors and labels of the same items, any of which may be missing.

Everything is stored on the device and gathered by row, so that a training step can be captured. Where a row lacks a
modality, it holds zeros; the mask `present` [rows, modalities] marks what each row has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unbraid.data.factors import Factor, FactorDataset, Pixels, hash_content
from unbraid.data.modality import Modality
from unbraid.errors import DataError, UsageError
from unbraid.types import Shape


class Observed(dict):
    """Observations by modality, zeros where one is missing; `present` [*index, modalities] marks the others."""

    present: Tensor | None = None


@dataclass(frozen=True)
class MultimodalDataset(FactorDataset):
    """Items that are observed in several modalities, with their factors of variation; made by `multimodal`.

    `pixels` has an empty row for each item: `images` and `shape` raise an error that names the modalities.
    """

    by_name: dict[str, Modality] = field(default_factory=dict)

    multimodal: ClassVar[bool] = True

    @property
    def modalities(self) -> dict[str, Modality]:
        return self.by_name

    @property
    def shape(self) -> Shape:
        raise self._refusal()

    @property
    def layout(self) -> dict[str, Shape]:
        return {name: modality.shape for name, modality in self.modalities.items()}

    def images(self, index: Tensor) -> Tensor:
        raise self._refusal()

    def observed(self, index: Tensor) -> Observed:
        observed = Observed({name: modality.rows(index) for name, modality in self.modalities.items()})
        observed.present = self.present(index)
        return observed

    def present(self, index: Tensor) -> Tensor | None:
        if all(modality.present is None for modality in self.modalities.values()):
            return None
        return torch.stack([self.has(name, index) for name in self.modalities], -1)

    def _fields_on(self, device: torch.device | str) -> dict[str, Any]:
        by_name = {name: modality.to(device) for name, modality in self.modalities.items()}
        return {**super()._fields_on(device), "by_name": by_name}

    def _content(self) -> list[Any]:
        return [*super()._content(), *(part for modality in self.modalities.values() for part in modality.content)]

    def _digest(self) -> str:
        tensors = super()._content()
        rows = hash_content(repr((len(self), self.sizes, self.factor_names)), tensors)
        return hash_content(rows, self._content()[len(tensors) :])

    def _refusal(self) -> UsageError:
        return UsageError(
            f"This needs data of one modality, and {self.name} has {len(self.modalities)} "
            f"({', '.join(self.modalities)}). Recipes such as partitioned-mvae learn from several; for pictures of "
            "their runs there are `unbraid explore`, and run.generate and run.translate in Python."
        )


def multimodal(
    name: str,
    modalities: Sequence[Modality],
    factors: tuple[Factor, ...] = (),
    table: Tensor | None = None,
    held_out: Tensor | None = None,
    source: str = "",
) -> MultimodalDataset:
    """Return a data set of modalities with the same number of rows; see `FactorDataset` for the other arguments."""
    if not modalities:
        raise DataError(f"{name} has no modality.")
    counts = {modality.name: len(modality.values) for modality in modalities}
    if len(counts) < len(modalities):
        raise DataError(f"{name} has two modalities of one name.")
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{each} has {count:,} rows" for each, count in counts.items())
        raise DataError(f"The modalities of {name} must have equally many rows: {shown}.")
    for modality in modalities:
        _check_modality(name, modality)
    parts = (part for modality in modalities for part in modality.content)
    device = next((part.device for part in parts if isinstance(part, Tensor)), None)
    rows = torch.zeros(len(modalities[0].values), 0, dtype=torch.uint8, device=device)
    # observations may have been drawn on a GPU while labels were read from a file
    table, held_out = (None if part is None else part.to(rows.device) for part in (table, held_out))
    by_name = {modality.name: modality for modality in modalities}
    return MultimodalDataset(name, Pixels(rows, (0,)), factors, table, held_out, source, by_name)


def _check_modality(data: str, modality: Modality) -> None:
    name, present, count = modality.name, modality.present, len(modality.values)
    if not name.isidentifier() or name == "name" or hasattr(nn.ModuleDict(), name):  # ModuleDict refuses such keys
        raise DataError(f"{data}: {name!r} cannot name a modality; use letters, digits and _, and a letter first.")
    if (len(modality.shape) == 3) != (modality.kind == "image"):
        raise DataError(f"{data}: an image has 3 dimensions and a {modality.kind} 1; {name} has {modality.shape}.")
    if present is not None and tuple(present.shape) != (count,):
        raise DataError(f"{data}: the mask of {name} has {len(present)} rows, and {name} has {count}.")
    if present is not None and not bool(present.any()):
        raise DataError(f"{data}: no row has the modality {name}; leave it out.")
