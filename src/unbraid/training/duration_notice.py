"""A sentence, after the first seconds on a CPU, if training will take long: how long, and what to do."""

from unbraid.config import Training
from unbraid.progress import Progress, announce, format_seconds

LONG_SECONDS = 1_800
"""Training that takes longer is announced."""

MEASURED_SECONDS = 5.0
MEASURED_STEPS = 3
"""Seconds and steps, after the first step, from which the time of all steps is estimated."""


class DurationNotice:
    """Announces once that training will take long; `shown=False` keeps it silent."""

    def __init__(self, training: Training, shown: bool) -> None:
        self.training = training
        self.waiting = shown

    def check(self, progress: Progress) -> None:
        """Announce the time left if enough steps have been measured; called after each step."""
        if not self.waiting or progress.measured_seconds < MEASURED_SECONDS or progress.measured < MEASURED_STEPS:
            return
        self.waiting = False
        left = progress.seconds_left or 0.0
        if left > LONG_SECONDS:
            announce(self._describe(left, progress.measured_seconds / progress.measured))

    def _describe(self, left: float, per_step: float) -> str:
        about = "about" if self.training.patience is None else "up to"
        steps = int(LONG_SECONDS / per_step)
        steps = max(1, round(steps, 2 - len(str(steps))))  # two digits and zeros
        return (
            f"Training will take {about} {format_seconds(left)} on this CPU; Ctrl-C stops it. For about "
            f"{LONG_SECONDS // 60} minutes write steps={steps}; with a GPU, --device cuda is faster."
        )
