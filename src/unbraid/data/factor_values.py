"""Factors as the numbers that they stand for."""

import math

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError


def factor_numbers(data: FactorDataset, index: Tensor) -> Tensor:
    """Real values [*index, factors] of the factors of rows, for models that take them as inputs; NaN for no label."""
    for factor in data.factors:
        if factor.values is None or any(isinstance(value, str) for value in factor.values):
            raise DataError(f"{data.name}: the values of factor {factor.name} are no numbers.")
    places = data.values_of(index)
    columns = []
    for column, factor in enumerate(data.factors):
        known = torch.tensor(factor.values, dtype=torch.float32, device=places.device)
        columns.append(known[places[..., column].clamp_min(0)].masked_fill(places[..., column] < 0, math.nan))
    return torch.stack(columns, dim=-1)
