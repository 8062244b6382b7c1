"""Find the data set that a user means by `data`, and the entry that a config stores for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.config import Choice
from unbraid.data.array_modalities import from_arrays
from unbraid.data.base import dataset as datasets, load
from unbraid.data.factors import FactorDataset
from unbraid.data.image_size import choose_size
from unbraid.data.images import from_array, from_dataset
from unbraid.errors import UsageError
from unbraid.progress import announce

GIVEN = "given"
"""Name under which a config records data that were passed in; the settings hold their content hash."""

Data = str | Path | FactorDataset | np.ndarray | Tensor | torch.utils.data.Dataset | Mapping[str, Any]


def find_data(data: Data, settings: dict[str, Any], device: torch.device) -> tuple[Choice, FactorDataset]:
    """Load a named data set, or wrap data that were passed in.

    Settings under `data.` belong to the data set and are removed from `settings`. A CSV file is short for the data set
    `paired`, a .npy file for `array`, a folder for `images`, whose pictures are resized if they are large or differ in
    size.
    """
    data_settings = {key[5:]: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() in (".csv", ".tsv"):
        data, data_settings = "paired", {"csv": str(data), **data_settings}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".npy":
        data, data_settings = "array", {"file": str(data), **data_settings}
    if isinstance(data, Path) or (isinstance(data, str) and data not in datasets and Path(data).is_dir()):
        data, data_settings = "images", {"folder": str(data), **data_settings}
    if isinstance(data, str):
        if data == "images" and "folder" in data_settings:
            _choose_missing_size(data_settings)
        recorded, unrecorded = datasets[data].resolve(data_settings), datasets[data].facts.unrecorded
        choice = Choice(data, {key: value for key, value in recorded.items() if key not in unrecorded})
        return choice, load(data, data_settings, device)
    if data_settings:
        setting = next(iter(data_settings))
        raise UsageError(f"data.{setting} is a setting of a named data set, but the data were passed in.")
    wrapped = _wrap(data)
    facts = {"content": wrapped.content_hash(), "source": wrapped.source or wrapped.name}
    return Choice(GIVEN, facts), wrapped.to(device)


def _choose_missing_size(settings: dict[str, Any]) -> None:
    """Add a size for the pictures of a folder if they need one and nobody gave it, and say so."""
    chosen = choose_size(Path(settings["folder"]).expanduser()) if "size" not in settings else None
    if chosen is not None:
        settings["size"] = chosen.size
        announce(f"  data.size={chosen.size}: {chosen.reason}")


def _wrap(data: Any) -> FactorDataset:
    if isinstance(data, FactorDataset):
        return data
    if isinstance(data, (np.ndarray, Tensor)):
        return from_array(data)
    return from_arrays(data) if isinstance(data, Mapping) else from_dataset(data)
