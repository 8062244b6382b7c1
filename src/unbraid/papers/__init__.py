"""Tables and figures of papers as experiments; importing this package registers them.

One module per paper, one decorated function per table or figure: `reproduce("chen2018/fig2", scale="small")` trains its
runs, tests its claims and writes table, figure and verdicts.
"""

from unbraid.papers import chen2018, daunhawer2019, esmaeili2018, msvae2020, split2020
from unbraid.papers.base import SCALES, Claim, Evidence, Experiment, Results, Scale, StandIn, Verdict, experiment, judge
from unbraid.papers.running import Outcome, chosen, reproduce

__all__ = [
    "SCALES",
    "Claim",
    "Evidence",
    "Experiment",
    "Outcome",
    "Results",
    "Scale",
    "StandIn",
    "Verdict",
    "chen2018",
    "chosen",
    "daunhawer2019",
    "esmaeili2018",
    "experiment",
    "judge",
    "msvae2020",
    "reproduce",
    "split2020",
]
