"""Densities of the aggregate posterior."""

from unbraid.density.estimators import (
    ESTIMATORS as ESTIMATORS,
    Aggregate as Aggregate,
    batch_aggregate as batch_aggregate,
    exact_aggregate as exact_aggregate,
    weighting as weighting,
)
