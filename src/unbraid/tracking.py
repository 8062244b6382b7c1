"""Trackers: TensorBoard, Weights & Biases and MLflow receive the lines of a run's history.

A tracker only listens: it changes neither the result nor the config nor the id of a run. A new one is a function with
the decorator `tracker` that takes a `RunFolder` and the first step, and returns a `Tracker`.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from unbraid.errors import MissingExtraError
from unbraid.extras import import_extra
from unbraid.registry import Facts, Registry
from unbraid.store import RunFolder

NOT_TRACKED = ("format", "step")
PROJECT = "unbraid"
"""Name of the project of Weights & Biases and of the experiment of MLflow."""


class Tracker(Protocol):
    """A place outside the run's folder that shows the numbers of a run."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackerFacts(Facts):
    """The module that a tracker imports."""

    module: str = ""


tracker: Registry[Callable[[RunFolder, int], Tracker], TrackerFacts] = Registry("tracker", TrackerFacts)
"""Decorator for a function (run folder, step at which training starts) -> `Tracker`."""


@tracker("tensorboard", module="tensorboard")
class TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self, folder: RunFolder, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = str(folder.path / "tensorboard")
        self.writer = SummaryWriter(path, purge_step=start + 1 if start else None)  # a resumed run repeats steps

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


@tracker("wandb", module="wandb")
class WeightsAndBiases:
    """A run of Weights & Biases in the run's folder, offline unless `WANDB_MODE` says otherwise."""

    def __init__(self, folder: RunFolder, start: int) -> None:
        wandb = import_extra("wandb", "wandb", "This tracker")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.path.name,
            dir=str(folder.path),
            config=folder.config.as_dict(),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",  # the runs of a group are tracked side by side
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


@tracker("mlflow", module="mlflow")
class MLflow:
    """A run of MLflow at `MLFLOW_TRACKING_URI`, or in the folder `mlruns` beside the run's folder."""

    def __init__(self, folder: RunFolder, start: int) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse folders otherwise
            uri = (folder.path.parent / "mlruns").resolve().as_uri()
        mlflow = import_extra("mlflow", "mlflow", "This tracker")
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.run = self.client.create_run(number, run_name=folder.path.name).info.run_id
        for key, value in _flatten(folder.config.as_dict()).items():
            self.client.log_param(self.run, key, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.run)


def check_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker is unknown or its package is not installed, before anything is trained."""
    for name in names:
        module = tracker[name].facts.module
        if module and find_spec(module) is None:
            raise MissingExtraError(f"The tracker {name}", module, name)


class Trackers:
    """The trackers of one run; one that fails is dropped with a warning, because training matters more."""

    def __init__(self, folder: RunFolder, names: Sequence[str], start: int = 0) -> None:
        self.open: dict[str, Tracker] = {}
        for name in names:
            self._try(name, lambda name=name: self.open.update({name: tracker[name].make(folder, start)}))

    def log(self, line: Mapping[str, Any]) -> None:
        """Pass on the finite numbers of a history line."""
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        values = {key: value for key, value in numbers.items() if key not in NOT_TRACKED and math.isfinite(value)}
        for name, each in list(self.open.items()):
            self._try(name, lambda each=each: each.log(line["step"], values))

    def close(self) -> None:
        for name, each in list(self.open.items()):
            self._try(name, each.close)
        self.open.clear()

    def _try(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self.open.pop(name, None)
            warnings.warn(f"The tracker {name} stopped ({error}); training goes on without it.", stacklevel=4)


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as `{"training.steps": 100}`."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
