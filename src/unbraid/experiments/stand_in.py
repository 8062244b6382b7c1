"""Data sets that replace others, whose files are missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unbraid.data import describe


@dataclass(frozen=True)
class StandIn:
    """A data set, and the one to use instead if its files are missing.

    `settings` replace those that only the wanted data set knows; None leaves one out. `of_stages` do so in the stages
    that refine runs on it.
    """

    wanted: str
    instead: str
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    of_stages: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.wanted

    def adapt(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings for the data set that is used instead."""
        changed = {**settings, **self.settings, "data": self.instead}
        return {key: value for key, value in changed.items() if key not in self.settings or value is not None}


def choose_data(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings with a data set whose files exist, and a note if it replaces another one."""
    data = settings.get("data")
    if not isinstance(data, StandIn):
        return dict(settings), []
    present = _is_present(data)
    notes = [] if present else [f"{data.instead} stand in for {data.wanted}, whose files are not here."]
    return {**settings, "data": data.wanted} if present else data.adapt(settings), notes


def replace_in_stages(data: Any) -> Mapping[str, Any]:
    """Return the settings that a stage needs because its first stage learned from a stand-in."""
    return data.of_stages if isinstance(data, StandIn) and not _is_present(data) else {}


def _is_present(data: StandIn) -> bool:
    return any(item.name == data.wanted and item.state != "missing" for item in describe())
