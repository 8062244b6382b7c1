"""The data sets and first stages of a sweep, each loaded once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unbraid.config import Choice
from unbraid.data import load as load_data
from unbraid.data.factors import FactorDataset
from unbraid.data.find import GIVEN, Data, find_data, find_missing_path
from unbraid.errors import RunError
from unbraid.store import RunFolder
from unbraid.stored_model import explain_missing_path
from unbraid.sweeps.plan import to_canonical
from unbraid.sweeps.stages import FirstStage
from unbraid.training.first_stage import check_data_of_first_stage, describe_first_stage


class Sources:
    """A cache of data sets, by name and settings or passed in, and of first stages."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._datasets: dict[str, FactorDataset] = {}
        self._choices: dict[str, Choice] = {}
        self._first_stages: dict[str, FirstStage] = {}

    def keep(self, data: Data, several: bool) -> str:
        """Keep data that were passed in, for recipes of one or `several` modalities; return their name in the plan."""
        choice, dataset = find_data(data, {}, self.device, several)
        name = f"{GIVEN}-{choice.settings['content'][:12]}"
        self._choices[to_canonical([name, {}])] = choice
        self._datasets[to_canonical(choice.as_dict())] = dataset
        return name

    def find(self, name: str, settings: Mapping[str, Any], several: bool) -> tuple[Choice, FactorDataset]:
        """Return the config entry of a data set, and the data set, for a recipe of one or `several` modalities."""
        kept = to_canonical([name, settings])  # data that were passed in
        key = kept if kept in self._choices else to_canonical([name, settings, several])
        if key not in self._choices:
            given = {f"data.{setting}": value for setting, value in settings.items()}
            choice, dataset = find_data(name, given, self.device, several)
            self._choices[key] = choice
            self._datasets[to_canonical(choice.as_dict())] = dataset
        return self._choices[key], self.dataset(self._choices[key])

    def dataset(self, choice: Choice, run: RunFolder | None = None) -> FactorDataset:
        """Return the data set of a config entry; an error names the `run` that it is for."""
        key = to_canonical(choice.as_dict())
        if key not in self._datasets:
            if choice.name == GIVEN:
                raise RunError("This sweep was begun on data that were passed in; pass them again to unbraid.sweep.")
            if run is not None and find_missing_path(choice) is not None:
                raise RunError(explain_missing_path(run))
            self._datasets[key] = load_data(choice.name, choice.settings, self.device)
        return self._datasets[key]

    def first_stage(self, path: str) -> FirstStage:
        """Open the finished run that a member refines."""
        if path not in self._first_stages:
            folder = RunFolder.open(Path(path))
            description = describe_first_stage(folder)
            dataset = self.dataset(folder.config.data, folder)
            check_data_of_first_stage(folder, dataset)
            self._first_stages[path] = FirstStage(folder, description, dataset)
        return self._first_stages[path]
