"""The frame of experiments: claims, evidence, verdicts, statistics, running and drawing.

`unbraid.papers` registers the experiments themselves.
"""

from unbraid.experiments.base import (
    SCALES as SCALES,
    Experiment as Experiment,
    Scale as Scale,
    experiment as experiment,
    find_experiments as find_experiments,
)
from unbraid.experiments.claims import Claim as Claim, Evidence as Evidence, Verdict as Verdict
from unbraid.experiments.judging import judge as judge
from unbraid.experiments.results import Results as Results
from unbraid.experiments.running import Reproduction as Reproduction, reproduce as reproduce
from unbraid.experiments.stand_in import StandIn as StandIn
