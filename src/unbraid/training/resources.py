"""Memory and disk that a run will need, compared with what is free before it starts."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unbraid.errors import RunError
from unbraid.printable import escape
from unbraid.progress import announce
from unbraid.training.grouping import MAX_MEMORY_SHARE, estimate_member_bytes, free_bytes
from unbraid.training.state import State

CHECKPOINTS_AT_ONCE = 3
"""The last two checkpoints, and the one that is being written."""

TENSORS_PER_CHECKPOINT = 3
"""A parameter and the two moments of Adam."""

SURELY_TOO_LARGE = 2.0
"""An estimate this many times the free memory is refused; a smaller one may be wrong, and is only said."""

BYTES_BESIDE_TENSORS = 1 << 17
"""Room for the text files of a run."""


class Runs(NamedTuple):
    """Runs of one structure: the bytes of the parameters of each, their number, and how many train at once."""

    parameter_bytes: int
    members: int = 1
    at_once: int = 1


def check_memory(state: State) -> None:
    """Raise if a run surely does not fit in the free memory of its device, and say if it hardly does."""
    needed, free = estimate_member_bytes(state), free_bytes(state.group.device)
    if needed <= MAX_MEMORY_SHARE * free:
        return
    advice = f"lower batch (now {state.epochs.batch}), z, or the widths of encoder and decoder"
    estimate = f"training needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free"
    if needed > SURELY_TOO_LARGE * free:
        raise RunError(f"This {estimate}; {advice}.")
    announce(f"warning: {estimate}; if it fails, {advice}.")


def check_disk(runs: Sequence[Runs], folder: Path) -> None:
    """Raise if the weights of runs, and the checkpoints of those that train at once, do not fit on the disk."""
    weights = sum(each.members * (each.parameter_bytes + BYTES_BESIDE_TENSORS) for each in runs)
    largest = max((each.at_once * each.parameter_bytes for each in runs), default=0)
    needed = weights + CHECKPOINTS_AT_ONCE * TENSORS_PER_CHECKPOINT * largest
    free = shutil.disk_usage(_existing(folder)).free
    if needed > free:
        raise RunError(
            f"Checkpoints and weights need {format_bytes(needed)}, and {escape(folder)} has {format_bytes(free)} free; "
            "free some space, choose another root, or lower z or the widths of encoder and decoder."
        )


def format_bytes(number: float) -> str:
    """Return e.g. '320 MB' or '1.5 GB'."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.absolute().parents) if each.exists())
