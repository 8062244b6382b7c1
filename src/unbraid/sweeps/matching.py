"""The two sides of a comparison, matched by the settings that vary besides the seed.

Runs of different settings are no seeds of each other. If `beta` is compared in a sweep that also has an axis `lr`, each
value of `lr` is a comparison of its own.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unbraid.errors import UsageError
from unbraid.report.tables import Member, find_varying_settings, format_setting, group_by_setting


class Side(NamedTuple):
    """One side of a comparison: a sweep, the settings asked for, and the finished runs that have them."""

    path: Path
    settings: Mapping[str, Any]
    members: Sequence[Member]

    def shares_sweep(self, other: "Side") -> bool:
        return self.path.resolve() == other.path.resolve()


class Match(NamedTuple):
    """Runs of both sides at the same values of all other settings; on each side they differ only in the seed."""

    settings: dict[str, Any]
    first: Sequence[Member]
    second: Sequence[Member]


def match_sides(first: Side, second: Side) -> tuple[list[Match], list[str]]:
    """Return the matches, and a note for each side that has settings without a partner."""
    _check_sides(first, second)
    keys = _find_other_axes(first, second)
    groups = [_group_by(side.members, keys) for side in (first, second)]
    shared = [values for values in groups[0] if values in groups[1]]
    if not shared:
        raise UsageError(
            f"Besides the seed, the runs vary in {' and '.join(keys)}, and both sides share no value of these; "
            f"choose one for each side: {_suggest_command(first, second, keys)}"
        )
    matches = [
        Match({key: groups[0][values][0].settings.get(key) for key in keys}, groups[0][values], groups[1][values])
        for values in shared
    ]
    return matches, _note_lonely(groups, (first, second), keys)


def _check_sides(first: Side, second: Side) -> None:
    """Raise if a side has no runs, or if both are of one sweep and have the same runs or the same settings."""
    for side in (first, second):
        if not side.members:
            raise UsageError(f"No finished run has {format_settings(side.settings)}.")
    if not first.shares_sweep(second):
        return
    if {member.run for member in first.members} & {member.run for member in second.members}:
        raise UsageError(
            "The two settings have runs in common; choose two values of the same setting, such as beta=1 beta=6."
        )
    others = [{k: format_setting(v) for k, v in side.settings.items() if k != "seed"} for side in (first, second)]
    if others[0] == others[1]:
        raise UsageError(
            "The two settings differ only in the seed, and the interval is over seeds, so there is nothing to compare; "
            "two runs are compared over rows by unbraid compare RUN RUN."
        )


def _find_other_axes(first: Side, second: Side) -> list[str]:
    """Return the settings to match by: those that vary within a side and, in one sweep, unnamed ones between sides.

    Two sweeps may differ in settings that are constant in each: these are what is compared.
    """
    varying = [*find_varying_settings(first.members), *find_varying_settings(second.members)]
    if first.shares_sweep(second):
        between = find_varying_settings([*first.members, *second.members])
        varying += [key for key in between if key not in {**first.settings, **second.settings}]
    return sorted({key: None for key in varying if key != "seed"}, key=lambda key: key != "recipe")


def _group_by(members: Sequence[Member], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Member]]:
    """Return members by their values of these settings, in the order of the values."""
    groups = (group.members for group in group_by_setting(members))
    return {tuple(format_setting(group[0].settings.get(key)) for key in keys): group for group in groups}


def _note_lonely(groups: Sequence[Mapping[tuple[Any, ...], Any]], sides: Sequence[Side], keys: list[str]) -> list[str]:
    notes = []
    for here, there, side in zip(groups, reversed(groups), sides, strict=True):
        lonely = [format_settings(dict(zip(keys, values, strict=True))) for values in here if values not in there]
        if lonely:
            whose = format_settings(side.settings) if side.settings else str(side.path)
            more = f" and {len(lonely) - 3} more" if len(lonely) > 3 else ""
            notes.append(f"Only {whose} has finished runs with {'; '.join(lonely[:3])}{more}: left out.")
    return notes


def _suggest_command(first: Side, second: Side, keys: Sequence[str]) -> str:
    """Return a command that chooses one value of each of these settings on either side."""
    words = ["unbraid", "compare", *dict.fromkeys(str(side.path) for side in (first, second))]
    for side in (first, second):
        known = side.members[0].settings
        chosen = {**side.settings, **{key: known[key] for key in keys if key in known}}
        words.append(format_settings(chosen or {"recipe": known.get("recipe")}))
    return shlex.join(words)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as the command line takes them, e.g. 'beta=1,lr=0.005'."""
    return ",".join(f"{key}={format_setting(value)}" for key, value in settings.items()) or "the whole sweep"
