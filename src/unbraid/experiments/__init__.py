"""The frame of experiments: claims, evidence, verdicts, statistics, running and drawing.

`unbraid.papers` registers the experiments themselves.
"""

from unbraid.experiments.base import (
    SCALES as SCALES,
    Claim as Claim,
    Evidence as Evidence,
    Experiment as Experiment,
    Results as Results,
    Scale as Scale,
    Verdict as Verdict,
    experiment as experiment,
    find_experiments as find_experiments,
)
from unbraid.experiments.judging import judge as judge
from unbraid.experiments.running import Reproduction as Reproduction, reproduce as reproduce
from unbraid.experiments.stand_in import StandIn as StandIn
