"""What a sweep tells whoever watches it."""

import os
import sys
from collections.abc import Mapping, Sequence

from unbraid.config import Config
from unbraid.sweeps.folder import SweepFolder


def plan_in_words(
    folder: SweepFolder, groups: Sequence[str], configs: Mapping[str, Config], device: str, on: str
) -> str:
    """`120 members in 2 groups of 60, 18,000 steps each, on cuda`."""
    sizes = [len(folder.runs_of(group)) for group in groups]
    if not sizes:
        return f"All {len(configs):,} members are there already."
    count = "1 group" if len(sizes) == 1 else f"{len(sizes):,} groups"
    lengths = [config.training.steps for config in configs.values()]
    where = f"on {device}" if on == "local" else f"through {on}"
    done = len(configs) - sum(sizes)
    reused = f" ({done:,} more are there already)" if done > 0 else ""
    return f"{sum(sizes):,} members in {count} of {_span(sizes)}, {_span(lengths)} steps each, {where}{reused}"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def say(words: str) -> None:
    """Tell whoever watches; standard output is for results."""
    if os.environ.get("UNBRAID_QUIET", "") != "1":
        print(words, file=sys.stderr, flush=True)
