"""Early stopping: training ends when the loss on held-out rows has not improved for some time.

With `patience=P`, the loss on the held-out rows is measured 50 times in a training, always on the same rows, with the
same noise, and with every schedule at its end. Training ends after P measurements in a row that are no better than the
best one so far; the last weights are kept, not the best ones. A measurement changes nothing else, so that a run which
does not stop early ends with the weights of one without patience. The state is part of a checkpoint.

The history's `held_out` has the same terms as `loss`, in batches of the same size (or of all held-out rows, if they are
fewer), with q(z) as that of the training rows, so the two can be compared.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from unbraid.config import Training
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.training.state import State

MEASUREMENTS = 50
"""Measurements in a training of full length."""

MAX_ROWS = 2_048
"""Held-out rows that are measured."""

HELD_OUT = "held_out"
"""Name of the held-out loss in the history."""

LOSS_KIND = 2
"""Kind of held-out loss that is measured. Kind 1, of checkpoints that state none, took the held-out rows for N."""


class HeldOutWatch:
    """The held-out loss of a run in training: the best so far, its step, and the measurements since then."""

    def __init__(self, state: State, training: Training, dataset: FactorDataset) -> None:
        self.state, self.patience = state, training.patience
        self.every = max(1, training.steps // MEASUREMENTS)
        self.best, self.best_step, self.misses = math.inf, 0, 0
        self.latest: float | None = None
        self.steps = training.steps
        rows = split(dataset, training.split).held_out if self.patience is not None else None
        self.rows = torch.empty(0) if rows is None else rows[:: max(1, len(rows) // MAX_ROWS)][:MAX_ROWS]

    @property
    def stops(self) -> bool:
        """True if training should end now."""
        return self.patience is not None and self.misses >= self.patience

    def is_due(self, step: int) -> bool:
        """Return whether a measurement is due after `step` steps."""
        return self.patience is not None and step % self.every == 0

    def measure(self) -> None:
        self.latest = self.state.measure(self.rows, self.steps)[0]
        if self.latest < self.best:
            self.best, self.best_step, self.misses = self.latest, self.state.step, 0
        else:
            self.misses += 1

    def take(self) -> dict[str, float]:
        """Return the newest measurement for the next history line, once."""
        taken = {} if self.latest is None else {HELD_OUT: self.latest}
        self.latest = None
        return taken

    def describe_stop(self) -> str:
        return (
            f"Stopped early at step {self.state.step:,} of {self.steps:,}: the held-out loss has not improved since "
            f"step {self.best_step:,} (patience={self.patience})."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint stores."""
        if self.patience is None:
            return {}
        latest = math.nan if self.latest is None else self.latest
        watch = torch.tensor([self.best, self.best_step, self.misses, latest], dtype=torch.float64)
        return {"watch": watch, "watch_loss_kind": torch.tensor(LOSS_KIND)}

    def restore(self, tensors: dict[str, Tensor], report: Callable[[str], None]) -> None:
        """Load what `tensors` returned; losses of another kind are dropped, and `report` gets a sentence about it."""
        if self.patience is None or "watch" not in tensors:
            return
        if int(tensors.get("watch_loss_kind", 1)) != LOSS_KIND:
            report(
                "The checkpoint is of another version, which may have measured the held-out loss differently; "
                "early stopping compares losses from this step on."
            )
            return
        self.best, step, misses, latest = tensors["watch"].tolist()
        self.best_step, self.misses = int(step), int(misses)
        self.latest = None if math.isnan(latest) else latest
