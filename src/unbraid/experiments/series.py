"""The runs of one series of an experiment, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unbraid.experiments.base import Experiment
from unbraid.experiments.derived_series import RefinedSeries
from unbraid.experiments.measuring import derive_scores, measure_all
from unbraid.experiments.run_matching import matches_settings
from unbraid.report.tables import Member
from unbraid.store import RunFolder
from unbraid.sweeps import Sweep


@dataclass(frozen=True)
class Series:
    """The runs of one series, in a sweep that may hold others."""

    facts: Experiment
    scale: str
    name: str
    source: Sweep | RefinedSeries

    def folder(self, member: Member) -> RunFolder:
        return self.source.folder.run_folder(member.run)

    def select(self, settings: Mapping[str, Any], every_seed: bool) -> list[Member]:
        """Return the members with these settings; a sweep that was extended or shared holds others, too."""
        wanted = {key: value for key, value in settings.items() if not (every_seed and key == "seed")}
        return [member for member in self.source.members if matches_settings(self.folder(member).config, wanted)]

    def score(self, members: Sequence[Member], device: torch.device) -> list[Member]:
        """Return the members with all scores, named after their series, with the axes as their only settings."""
        measures, axes = self.facts.get_scale(self.scale).measures, self.facts.list_axes(self.scale)
        finished = {m.run: self.folder(m) for m in members if m.state == "finished"}
        found = measure_all(list(finished.values()), measures, device)
        scored = []
        for member in members:
            scores = found[finished[member.run]] if member.run in finished else dict(member.scores)
            scores |= derive_scores(self.facts, self.name, scores)
            settings = {"recipe": self.name, **{key: member.settings[key] for key in axes if key in member.settings}}
            scored.append(Member(f"{self.name}/{member.run}", settings, member.state, member.trouble, scores))
        return scored

    def has_paper_length(self, member: Member) -> bool:
        """Return True if a run has as many steps as those that the paper or its authors' code states."""
        known = self.name in self.facts.own_steps and "paper" in self.facts.scales
        steps = self.facts.build_sweeps("paper")[self.name].get("steps") if known else None
        return has_paper_length(self.folder(member), steps)


def has_paper_length(run: RunFolder, paper_steps: int | None) -> bool:
    """Return True if a run trained for as many steps as the paper's."""
    return paper_steps is not None and run.config.training.steps >= paper_steps
