"""Models of an experiment's runs, for figures that show a model and not a number."""

from collections.abc import Mapping

import torch

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.run import Run
from unbraid.store import RunFolder


class ModelCache:
    """Runs by name, each loaded when a figure asks for it; those that were trained on the same data share them."""

    def __init__(self, folders: Mapping[str, RunFolder], device: torch.device) -> None:
        self.folders, self.device = folders, device
        self._datasets: dict[str | None, FactorDataset] = {}
        self._evaluations: dict[str, Evaluation] = {}

    def load_evaluation(self, name: str) -> Evaluation:
        """The model of a run on its data, which need its weights."""
        if name not in self._evaluations:
            self._evaluations[name] = self._run(self.folders[name]).evaluation
        return self._evaluations[name]

    def _run(self, folder: RunFolder) -> Run:
        if not folder.model_path.exists():
            raise UsageError(f"It shows models, and {folder.path} has no weights.")
        content = folder.read_json("data").get("content")
        run = Run(folder, dataset=self._datasets.get(content), device=self.device)
        self._datasets[content] = run.dataset
        return run
