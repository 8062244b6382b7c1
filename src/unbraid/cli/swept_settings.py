"""Settings in which the runs of a sweep differ, read without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unbraid.cli.printing import print_notes
from unbraid.errors import RunError, UnbraidError
from unbraid.printable import format_setting


def read_swept_settings(sweep: Path) -> dict[str, dict[str, Any]]:
    """Return the settings that vary in a sweep, by run id: the recipe first, the seed last; {} for other folders."""
    from unbraid.store import RunFolder

    if not (sweep / "sweep.yaml").exists():
        return {}
    try:
        members = RunFolder(sweep).read_json("members").get("members", {})
        if not isinstance(members, dict) or not all(isinstance(each, dict) for each in members.values()):
            raise RunError(f"{sweep / 'members.json'} does not hold the settings of runs.")
    except UnbraidError as error:  # the runs can be listed without it
        print_notes([f"{error} Settings of the sweep are not shown."])
        return {}
    names = dict.fromkeys(key for settings in members.values() for key in settings)
    several = [n for n in names if len({format_setting(settings.get(n)) for settings in members.values()}) > 1]
    several.sort(key=lambda name: (name != "recipe", name == "seed"))
    return {run: {key: format_setting(settings.get(key)) for key in several} for run, settings in members.items()}


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return e.g. 'beta=4, seed=0'."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())
