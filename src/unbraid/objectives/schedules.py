"""Schedules of weights and targets; the step may be a tensor, so that a compiled step never recompiles."""

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.types import Weight


def ramp(step: int | Tensor, over: int) -> Weight:
    """Return a number that rises from 0 to 1 in a straight line over the first `over` steps, or 1 if `over` is 0."""
    if over < 0:
        raise UsageError(f"A weight or target rises over a number of steps, 0 or above, not {over}.")
    if over == 0:
        return 1.0
    fraction = (step + 1) / over
    return fraction.clamp(max=1.0) if isinstance(fraction, Tensor) else min(1.0, fraction)
