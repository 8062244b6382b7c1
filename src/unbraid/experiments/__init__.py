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
    find_experiments,
    judge,
)
from unbraid.experiments.running import Reproduction, reproduce

__all__ = ["SCALES", "Claim", "Evidence", "Experiment", "Reproduction", "Results", "Scale", "StandIn", "Verdict"]
__all__ += ["experiment", "find_experiments", "judge", "reproduce"]
