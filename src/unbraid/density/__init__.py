"""Densities of the aggregate posterior."""

from unbraid.density.estimators import ESTIMATORS, Aggregate, batch_aggregate, exact_aggregate, weighting

__all__ = ["ESTIMATORS", "Aggregate", "batch_aggregate", "exact_aggregate", "weighting"]
