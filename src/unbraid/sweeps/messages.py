"""The progress messages and notes of a sweep."""

from collections.abc import Mapping, Sequence

from unbraid.config import Config
from unbraid.sweeps.folder import SweepFolder


def describe_plan(
    folder: SweepFolder, groups: Sequence[str], configs: Mapping[str, Config], device: str, on: str
) -> str:
    """Return e.g. '120 members in 2 groups of 60, 18,000 steps each, on cuda'."""
    sizes = [len(folder.list_runs(group)) for group in groups]
    if not sizes:
        return f"{pluralise(len(configs), 'member')} {'is' if len(configs) == 1 else 'are'} finished already."
    lengths = [config.training.steps for config in configs.values()]
    where = f"on {device}" if on == "local" else f"through {on}"
    done = len(configs) - sum(sizes)
    reused = f" ({done:,} more {'is' if done == 1 else 'are'} finished already)" if done > 0 else ""
    parts = f"{pluralise(sum(sizes), 'member')} in {pluralise(len(sizes), 'group')} of {_span(sizes)}"
    return f"{parts}, {_span(lengths)} steps each, {where}{reused}"


def describe_left_out(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a note per metric that is newly left out: for how many members, and the reason for the first one."""
    reasons: dict[str, list[str]] = {}
    for run, metrics in now.items():
        for metric in metrics.keys() - before.get(run, {}).keys():
            reasons.setdefault(metric, []).append(metrics[metric])
    members = pluralise(len(now), "member")
    return [f"{metric} is left out for {len(why)} of {members}: {why[0]}" for metric, why in sorted(reasons.items())]


def pluralise(number: int, noun: str) -> str:
    """Return e.g. '1 member' or '1,200 members'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
