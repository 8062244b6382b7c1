"""The frame of experiments: claims, evidence, verdicts, statistics, running and drawing.

`unbraid.papers` registers the experiments themselves.
"""

from unbraid.experiments.base import (
    SCALES,
    Claim,
    Evidence,
    Experiment,
    Results,
    Scale,
    StandIn,
    Verdict,
    experiment,
    judge,
)
from unbraid.experiments.running import Reproduction, find_experiments, reproduce

__all__ = [
    "SCALES",
    "Claim",
    "Evidence",
    "Experiment",
    "Reproduction",
    "Results",
    "Scale",
    "StandIn",
    "Verdict",
    "experiment",
    "find_experiments",
    "judge",
    "reproduce",
]
