r"""Labels as codes of supervised stages (msvae2020, section 4 and appendices C and E).

A factor is one coordinate: the place of its value among n, standardised as if all values were equally frequent. A
circular factor is two, sqrt 2 (cos, sin) of its angle. A code depends only on the label and on n, so it means the same
in every stage of a chain, whichever rows a stage learned from.
"""

import math

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError


class LabelCodes:
    """Coordinates of the named factors, in that order; without names, of all factors that vary."""

    def __init__(self, dataset: FactorDataset, names: tuple[str, ...], circular: tuple[str, ...] = ()) -> None:
        varying = dataset.varying_factors
        self.columns = [dataset.factor_position(name) for name in names] or varying
        around = {dataset.factor_position(name) for name in circular}
        once = len(set(self.columns)) == len(self.columns)
        if not once or not set(self.columns) <= set(varying) or not around <= set(self.columns):
            raise UsageError("factors must name factors that vary, each once, and circular some of them.")
        self.dataset, self.around = dataset, around

    @property
    def width(self) -> int:
        """Number of coordinates."""
        return len(self.columns) + len(self.around)

    @property
    def names(self) -> list[str]:
        return [self.dataset.factor_names[column] for column in self.columns]

    def check_complete(self, rows: Tensor) -> None:
        """Raise a `UsageError` if one of these rows lacks a label."""
        values = self.dataset.values_of(rows)
        for name, column in zip(self.names, self.columns, strict=True):
            if bool((values[:, column] < 0).any()):
                raise UsageError(f"Some rows of {self.dataset.name} lack a label of {name}.")

    def codes(self, factors: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return coordinates [..., width] of factor values [..., factors]."""
        parts: list[Tensor] = []
        for column in self.columns:
            value, count = factors[..., column].to(dtype), self.dataset.sizes[column]
            if column in self.around:
                angle = value * (2 * math.pi / count)
                parts += [math.sqrt(2) * angle.cos(), math.sqrt(2) * angle.sin()]
            else:
                parts.append((value - (count - 1) / 2) / math.sqrt((count**2 - 1) / 12))
        return torch.stack(parts, -1)
