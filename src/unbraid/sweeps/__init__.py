"""Sweeps: every combination of some settings' values becomes a run, and runs that can train as one program do.

`sweep` plans and leads; `work` does one group, here or on any worker, from nothing but a folder and a group's id.
"""

from unbraid.sweeps.results import Sweep
from unbraid.sweeps.run import sweep
from unbraid.sweeps.scoring import evaluations
from unbraid.sweeps.worker import work

__all__ = ["Sweep", "evaluations", "sweep", "work"]
