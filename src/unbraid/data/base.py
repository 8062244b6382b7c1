"""The registry of data sets, and the function that loads them."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError
from unbraid.folder_names import to_path
from unbraid.registry import Facts, Registry


@dataclass(frozen=True)
class DatasetFacts(Facts):
    """Facts about a data set that are known before it is loaded.

    `images` is the number of rows, `shape` that of one observation; `factors` and `modalities` are names. `recipe`
    returns the `Recipe` of the stored file, for data that come from files. `yours` marks data that only the user has.
    `stages` names settings in which the stages of one model may differ, because the rows stay the same. `unrecorded`
    names settings that no config records, because they change no row.
    """

    images: int | None = None
    shape: Any = None
    factors: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    recipe: Callable[..., Any] | None = None
    yours: bool = False
    stages: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()


dataset: Registry[Callable[..., FactorDataset], DatasetFacts] = Registry("data set", DatasetFacts)
"""Decorator for a function that returns a `FactorDataset`; its keyword arguments are the data set's settings."""


MAX_KEPT = 2
"""Data sets that `keep_loaded` keeps: an experiment compares its runs on one or two of them."""

_kept: ContextVar[dict[str, FactorDataset] | None] = ContextVar("kept", default=None)


def data_home() -> Path:
    """Return the folder of downloaded, converted and rendered data: `UNBRAID_DATA`, or a per-user cache folder."""
    if folder := os.environ.get("UNBRAID_DATA"):
        return expand_user(folder)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "unbraid"
    try:
        return Path.home() / ".cache" / "unbraid"
    except RuntimeError as error:
        raise DataError("This user has no home folder; set UNBRAID_DATA to the folder of the data.") from error


def expand_user(path: str | bytes | Path) -> Path:
    """Return a path with the home folder that `~` or `~user` stands for."""
    path = to_path(path)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise DataError(f"{path} names no home folder: there is no such user here, or HOME is not set.") from error


def refuse_unwritable(path: Path, error: OSError) -> DataError:
    """Return the error for a file in the data folder that cannot be written."""
    return DataError(f"{path} cannot be written ({error.strerror or error}); set UNBRAID_DATA to another folder.")


@contextmanager
def keep_loaded() -> Iterator[None]:
    """Load no data set twice inside: `load` returns one of the last `MAX_KEPT` again if all its settings are equal.

    Drawing the styles of MNIST takes seven seconds, and an experiment needs them for each of its series: to train it,
    to score its runs, and to score them as they were before the last fifth of training.
    """
    if _kept.get() is not None:  # a caller keeps them already
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def load(name: str, settings: Mapping[str, Any] | None = None, device: torch.device | str = "cpu") -> FactorDataset:
    """Load a registered data set; a rendered one is rendered on `device`."""
    entry = dataset[name]
    resolved = entry.resolve(settings or {}, "data.")
    kept = _kept.get()
    if kept is None:
        return _load(name, resolved, device)
    try:
        key = json.dumps([name, resolved, str(torch.device(device))], sort_keys=True)
    except TypeError:  # a setting that has no text, such as an array
        return _load(name, resolved, device)
    found = kept.pop(key, None)
    while len(kept) >= MAX_KEPT:  # before another one is loaded
        del kept[next(iter(kept))]
    kept[key] = found = found if found is not None else _load(name, resolved, device)
    return found


def _load(name: str, settings: Mapping[str, Any], device: torch.device | str) -> FactorDataset:
    with torch.device(device):
        data = dataset[name].make(**settings)
    if len(data) == 0:
        raise DataError(f"{name} holds no images.")
    moved = data.to(device)
    if moved.device.type == "cuda" and data.device.type == "cpu" and not (data.multimodal or data.pixels.streamed):
        moved.take_hash(data)
    return moved
