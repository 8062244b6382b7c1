"""Sweeps: every combination of some settings' values is a run, and runs of one structure train as one program.

`sweep` plans and leads; `run_group` trains and scores one group, here or on any worker, from a folder and a group's id.
"""

from unbraid.sweeps.results import Sweep as Sweep
from unbraid.sweeps.run import sweep as sweep
from unbraid.sweeps.worker import run_group as run_group
