"""The data of a sweep, each set loaded once."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from unbraid.api import GIVEN, Data, find_data
from unbraid.config import Choice
from unbraid.data import load as load_data
from unbraid.data.factors import FactorDataset
from unbraid.errors import RunError
from unbraid.sweeps.folder import plain


class Sources:
    """Data sets by name and settings, or as they were passed in, each loaded once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._loaded: dict[str, FactorDataset] = {}
        self._chosen: dict[str, Choice] = {}

    def keep(self, data: Data) -> str:
        """Take data that were passed in, and return the name by which the sweep speaks of them."""
        choice, dataset = find_data(data, {}, self.device)
        called = f"{GIVEN}-{choice.settings['content'][:12]}"
        self._chosen[canonical([called, {}])] = choice
        self._loaded[canonical(choice.as_dict())] = dataset
        return called

    def find(self, name: str, settings: Mapping[str, Any]) -> tuple[Choice, FactorDataset]:
        """How a config records the data, and the data."""
        asked = canonical([name, settings])
        if asked not in self._chosen:
            choice, dataset = find_data(name, {f"data.{key}": value for key, value in settings.items()}, self.device)
            self._chosen[asked] = choice
            self._loaded[canonical(choice.as_dict())] = dataset
        return self._chosen[asked], self.of(self._chosen[asked])

    def of(self, choice: Choice) -> FactorDataset:
        """The data that a config names."""
        key = canonical(choice.as_dict())
        if key not in self._loaded:
            if choice.name == GIVEN:
                raise RunError("This sweep was begun on data that were passed in; pass them again: unbraid.sweep(…).")
            self._loaded[key] = load_data(choice.name, choice.settings, self.device)
        return self._loaded[key]


def canonical(value: Any) -> str:
    """Text that equal values share."""
    return json.dumps(plain(value), sort_keys=True, default=str)
