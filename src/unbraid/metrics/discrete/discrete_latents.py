"""Discrete latent variables of a model: which there are, which class a row has, and codes of one class."""

from typing import NamedTuple

import torch
from torch import Tensor

from unbraid.errors import SettingError, unknown
from unbraid.latents import Space
from unbraid.metrics.base import Evaluation


class DiscreteLatent(NamedTuple):
    """A discrete variable: its name, and its coordinates in the code (one, if it is binary)."""

    name: str
    columns: list[int]

    @property
    def size(self) -> int:
        """Number of classes."""
        return max(2, len(self.columns))

    def classes(self, codes: Tensor) -> Tensor:
        """The most probable class of each code [n]."""
        own = codes[..., self.columns]
        return own.argmax(-1) if len(self.columns) > 1 else (own[..., 0] > 0.5).long()

    def with_class(self, codes: Tensor, number: int) -> Tensor:
        """The same codes with this variable set to one class."""
        one = torch.eye(len(self.columns), device=codes.device)[number] if len(self.columns) > 1 else float(number)
        made = codes.clone()
        made[..., self.columns] = one
        return made


def list_discrete_latents(space: Space) -> list[DiscreteLatent]:
    """All discrete variables of a space."""
    kinds = [b.discrete for b in space.blocks.values() for _ in range(b.leaves)]
    found = zip(space.leaf_names(), space.leaf_columns(), kinds, strict=True)
    return [DiscreteLatent(name, columns) for name, columns, discrete in found if discrete]


def choose_discrete_latent(evaluation: Evaluation, latent: str | None) -> DiscreteLatent:
    """Return the variable of this name, or the first if none is named."""
    known = list_discrete_latents(evaluation.space)
    named = {variable.name: variable for variable in known}
    if latent is not None and latent not in named:
        raise unknown("discrete latent", latent, named, error=SettingError)
    return known[0] if latent is None else named[latent]
