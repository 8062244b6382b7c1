"""Scores; importing this package registers them."""

from unbraid.metrics import bound, information
from unbraid.metrics.base import Evaluation, Score, encode_together, evaluate, expand, metric
from unbraid.metrics.information import mig, mig_exact, restricted

__all__ = [
    "Evaluation",
    "Score",
    "bound",
    "encode_together",
    "evaluate",
    "expand",
    "information",
    "metric",
    "mig",
    "mig_exact",
    "restricted",
]
