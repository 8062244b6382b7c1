"""Factor values as real numbers."""

import math

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError


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
