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
        return f"{counted(len(configs), 'member')} {'is' if len(configs) == 1 else 'are'} there already."
    lengths = [config.training.steps for config in configs.values()]
    where = f"on {device}" if on == "local" else f"through {on}"
    done = len(configs) - sum(sizes)
    reused = f" ({done:,} more {'is' if done == 1 else 'are'} there already)" if done > 0 else ""
    parts = f"{counted(sum(sizes), 'member')} in {counted(len(sizes), 'group')} of {_span(sizes)}"
    return f"{parts}, {_span(lengths)} steps each, {where}{reused}"


def left_out_in_words(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One note per metric that has been left out since: for how many members, and why for the first of them."""
    reasons: dict[str, list[str]] = {}
    for run, metrics in now.items():
        for metric in metrics.keys() - before.get(run, {}).keys():
            reasons.setdefault(metric, []).append(metrics[metric])
    of = counted(len(now), "member")
    return [f"{metric} is left out for {len(told)} of {of}: {told[0]}" for metric, told in sorted(reasons.items())]


def counted(number: int, noun: str) -> str:
    """`1 member`, `1,200 members`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def say(words: str) -> None:
    """Tell whoever watches; standard output is for results."""
    if os.environ.get("UNBRAID_QUIET", "") != "1":
        print(words, file=sys.stderr, flush=True)
