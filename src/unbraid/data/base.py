"""The registry of data sets, and the one way to load them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError
from unbraid.registry import Facts, Registry


@dataclass(frozen=True)
class DatasetFacts(Facts):
    """What is known of a data set before it is loaded.

    `images` is the number of rows, `shape` that of one observation, `factors` and `modalities` are names. `recipe`
    returns how its stored file is made, for data that come from files; `yours` marks data that only the user has.
    `stages` names settings in which the stages of one model may differ: the rows stay the same.
    """

    images: int | None = None
    shape: Any = None
    factors: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    recipe: Callable[..., Any] | None = None
    yours: bool = False
    stages: tuple[str, ...] = ()


dataset: Registry[Callable[..., FactorDataset], DatasetFacts] = Registry("data set", DatasetFacts)
"""Decorator for a function that returns a `FactorDataset`; its keyword arguments are the data set's settings."""


def data_home() -> Path:
    """Folder of downloaded, converted and rendered data: `UNBRAID_DATA`, or a per-user cache folder."""
    given = os.environ.get("UNBRAID_DATA")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "unbraid"


def load(name: str, settings: Mapping[str, Any] | None = None, device: torch.device | str = "cpu") -> FactorDataset:
    """A registered data set on a device.

    The device is also the default one while the data set is made, so a rendered set is rendered there.
    """
    entry = dataset[name]
    resolved = entry.resolve(settings or {})
    with torch.device(device):
        made = entry.make(**resolved)
    if len(made) == 0:
        raise DataError(f"{name} holds no images.")
    return made.to(device)
