"""Sweeps: every combination of values is a run, and runs of one structure train as one program.

`sweep` plans and launches; `run_group` trains and scores one group, in this process or on a worker.
"""

from unbraid.sweeps.results import Sweep as Sweep
from unbraid.sweeps.run import sweep as sweep
from unbraid.sweeps.worker import run_group as run_group
