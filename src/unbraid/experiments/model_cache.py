"""Models of an experiment's runs, for figures that show a model and not a number."""

from collections.abc import Mapping

import torch

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.run import Run
from unbraid.store import RunFolder


class ModelCache:
    """Runs by name. Each is loaded when a figure needs it; runs with the same data share one data set."""

    def __init__(self, folders: Mapping[str, RunFolder], device: torch.device) -> None:
        self.folders, self.device = folders, device
        self._datasets: dict[str | None, FactorDataset] = {}
        self._evaluations: dict[str, Evaluation] = {}

    def load_evaluation(self, name: str) -> Evaluation:
        """Return the model of a run on its data. The run must have its weights."""
        if name not in self._evaluations:
            folder = self.folders[name]
            if not folder.model_path.exists():
                raise UsageError(f"It shows models, and {folder.path} has no weights.")
            content = folder.read_json("data").get("content")
            run = Run(folder, dataset=self._datasets.get(content), device=self.device)
            self._datasets[content], self._evaluations[name] = run.dataset, run.evaluation
        return self._evaluations[name]
