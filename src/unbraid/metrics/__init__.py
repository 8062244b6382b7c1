"""Scores; importing this package registers them."""

from unbraid.metrics import bound, information
from unbraid.metrics.base import Evaluation, Score, evaluate, expand, metric
from unbraid.metrics.information import mig, mig_exact, restricted

__all__ = [
    "Evaluation",
    "Score",
    "bound",
    "evaluate",
    "expand",
    "information",
    "metric",
    "mig",
    "mig_exact",
    "restricted",
]
