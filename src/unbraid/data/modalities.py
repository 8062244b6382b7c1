"""Data sets of several modalities: images, vectors and labels of the same things, any of which may be missing.

Everything lies on the device and is gathered by row, so that a training step can be recorded. A modality that a row
lacks holds zeros there; the mask `present` [rows, modalities] marks what a row has.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.modality import Modality
from unbraid.errors import DataError, UsageError
from unbraid.types import Shape


@dataclass(frozen=True)
class MultimodalDataset(FactorDataset):
    """Things that are observed in several modalities, with their factors of variation; made by `multimodal`.

    `pixels` has a row for each thing and nothing in it: `images` and `shape` raise an error that names the modalities.
    """

    by_name: dict[str, Modality] = field(default_factory=dict)

    multimodal: ClassVar[bool] = True

    @property
    def modalities(self) -> dict[str, Modality]:
        """Modalities by name, in order."""
        return self.by_name

    @property
    def shape(self) -> Shape:
        """Raise a `UsageError`: there is no single shape."""
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
        """Raise a `UsageError`: there is no single modality."""
        raise self._refusal()

    def observed(self, index: Tensor) -> dict[str, Tensor]:
        """Return rows of every modality [*index, *shape], zeros where one is missing."""
        return {name: modality.rows(index) for name, modality in self.modalities.items()}

    def present(self, index: Tensor) -> Tensor | None:
        """Return which modalities rows have [*index, modalities]; None if nothing is missing in all the data."""
        if all(modality.present is None for modality in self.modalities.values()):
            return None
        return torch.stack([self.has(name, index) for name in self.modalities], -1)

    def _fields_on(self, device: torch.device | str) -> dict[str, Any]:
        by_name = {name: modality.to(device) for name, modality in self.modalities.items()}
        return {**super()._fields_on(device), "by_name": by_name}

    def content_hash(self) -> str:
        """Return the SHA-256 of all modalities, factor values and test rows, equal on every machine and device."""
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
            f"This needs data of one modality, and {self.name} has {len(self.modalities)} ({names}). Use "
            "run.generate and run.translate for pictures, scores that look at codes, and for training an objective "
            "such as partitioned-mvae."
        )


def multimodal(
    name: str,
    modalities: Mapping[str, Modality] | list[Modality],
    factors: tuple[Factor, ...] = (),
    table: Tensor | None = None,
    held_out: Tensor | None = None,
    source: str = "",
) -> MultimodalDataset:
    """Return a data set of modalities with the same number of rows; see `FactorDataset` for the other arguments."""
    listed = list(modalities.values()) if isinstance(modalities, Mapping) else modalities
    if not listed:
        raise DataError(f"{name} has no modality.")
    counts = {modality.name: len(modality.values) for modality in listed}
    if len(counts) < len(listed):
        raise DataError(f"{name} has two modalities of one name.")
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{each} has {count:,} rows" for each, count in counts.items())
        raise DataError(f"The modalities of {name} must have equally many rows: {shown}.")
    for modality in listed:
        _check_modality(name, modality)
    rows = torch.zeros(len(listed[0].values), 0, dtype=torch.uint8)
    by_name = {modality.name: modality for modality in listed}
    return MultimodalDataset(name, Pixels(rows, (0,)), factors, table, held_out, source, by_name)


def _bytes(tensor: Tensor) -> memoryview:
    return np.ascontiguousarray(tensor.cpu().numpy()).data


def _check_modality(data: str, modality: Modality) -> None:
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
