"""Discrete latent variables of a model: their names, the classes of codes, and codes of one class."""

from typing import NamedTuple

import torch
from torch import Tensor

from unbraid.errors import SettingError, unknown
from unbraid.latents import Space
from unbraid.metrics.base import Evaluation


class DiscreteLatent(NamedTuple):
    """The name of a discrete variable and its coordinates in the code (one if it is binary)."""

    name: str
    columns: list[int]

    @property
    def size(self) -> int:
        """Number of classes."""
        return max(2, len(self.columns))

    def classes(self, codes: Tensor) -> Tensor:
        """Return the most probable class of each code [n]."""
        values = codes[..., self.columns]
        return values.argmax(-1) if len(self.columns) > 1 else (values[..., 0] > 0.5).long()

    def with_class(self, codes: Tensor, number: int) -> Tensor:
        """Return a copy of the codes with this variable set to one class."""
        one = torch.eye(len(self.columns), device=codes.device)[number] if len(self.columns) > 1 else float(number)
        changed = codes.clone()
        changed[..., self.columns] = one
        return changed


def list_discrete_latents(space: Space) -> list[DiscreteLatent]:
    is_discrete = [b.discrete for b in space.blocks.values() for _ in range(b.leaves)]
    variables = zip(space.leaf_names(), space.leaf_columns(), is_discrete, strict=True)
    return [DiscreteLatent(name, columns) for name, columns, discrete in variables if discrete]


def choose_discrete_latent(evaluation: Evaluation, latent: str | None) -> DiscreteLatent:
    """Return the variable of this name, by default the first."""
    by_name = {variable.name: variable for variable in list_discrete_latents(evaluation.space)}
    if latent is not None and latent not in by_name:
        raise unknown("discrete latent", latent, by_name, error=SettingError)
    return by_name[latent] if latent is not None else next(iter(by_name.values()))
