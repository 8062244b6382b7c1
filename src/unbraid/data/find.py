"""Find the data set that a user means by `data`, and the entry that a config stores for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.config import Choice
from unbraid.data.array_modalities import from_arrays
from unbraid.data.base import dataset as datasets, expand_user, load
from unbraid.data.csv_modalities import has_pictures, list_picture_columns
from unbraid.data.factors import FactorDataset
from unbraid.data.images import from_array, from_dataset
from unbraid.data.label_csv import SUBFOLDERS, has_labelled_subfolders
from unbraid.data.picture_files import SUFFIXES, list_pictures, read_size
from unbraid.data.table_files import TABLES, TEXT_TABLES, is_frame, is_table_file, read_cells
from unbraid.data.tables import from_table
from unbraid.data.unreadable_pictures import Unreadable, leave_out_unreadable, name_unreadable
from unbraid.errors import UsageError
from unbraid.folder_names import to_path
from unbraid.memory import explain_out_of_memory
from unbraid.names import unknown_data
from unbraid.progress import announce
from unbraid.registry import check_options

GIVEN = "given"
"""Name under which a config records data that were passed in; the settings hold their content hash."""

Data = Any
"""A registered name, a path, an array, a tensor, a DataFrame, a torch Dataset, a `FactorDataset`, or arrays by name."""

PATH_SETTINGS = {"images": ("folder", "labels"), "table": ("file",), "paired": ("csv",), "array": ("file",)}
"""Settings that hold paths, by the data set."""

HEADERS_TO_READ = 256
"""Pictures, evenly spaced, whose sizes are read."""

LARGEST_KEPT_SIDE = 128
"""Larger pictures are resized: the time of a step grows with the pixels."""

PICTURE_SIZES = (32, 64)


def find_missing_path(data: Choice) -> str | None:
    """Return the relative path of a stored config that does not exist from here, or None."""
    paths = [data.settings.get(key) for key in PATH_SETTINGS.get(data.name, ())]
    relative = [path for path in paths if isinstance(path, str) and path not in ("", SUBFOLDERS)]
    relative = [path for path in relative if not Path(path).is_absolute() and not path.startswith("~")]
    return next((path for path in relative if not Path(path).exists()), None)


@explain_out_of_memory("Loading the data", "use a smaller data.size, fewer rows, or data on disk (data.stream)")
def find_data(
    data: Data, settings: dict[str, Any], device: torch.device, several: bool | None = None
) -> tuple[Choice, FactorDataset]:
    """Load a named data set, or wrap data that were passed in.

    Settings under `data.` belong to the data set and are removed from `settings`. A folder is short for `images`; the
    path of a table for `table`, or for `paired` if the recipe learns from `several` modalities; any other .npy file for
    `array`. If `several` is not known, a CSV file with pictures, or with settings of `paired`, is `paired`. Pictures
    are resized if they are large or differ in size.
    """
    if isinstance(data, (str, bytes, Path)) and data not in datasets:
        checked = to_path(data, "data")
        data = data if isinstance(data, str) else checked
    data_settings = {key[5:]: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    if is_frame(data):
        data = _wrap_frame(data, data_settings, several)
        data_settings = {}
    if isinstance(data, (str, Path)) and data not in datasets and is_table_file(data):
        paired = Path(data).suffix.lower() in TEXT_TABLES and _is_paired(Path(data), data_settings, several)
        file = {"csv": str(data)} if paired else {"file": str(data)}
        data, data_settings = "paired" if paired else "table", {**file, **data_settings}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".npy":
        data, data_settings = "array", {"file": str(data), **data_settings}
    if isinstance(data, (str, Path)) and data not in datasets and Path(data).is_file():
        raise _refuse_file(Path(data))
    if isinstance(data, Path) or (isinstance(data, str) and data not in datasets and Path(data).is_dir()):
        data, data_settings = "images", {"folder": str(data), **data_settings}
    pictures = isinstance(data, str) and data == "images"
    if pictures and "labels" not in data_settings and has_labelled_subfolders(data_settings.get("folder")):
        data_settings["labels"] = SUBFOLDERS
    if isinstance(data, str):
        if data not in datasets:
            raise unknown_data(data, datasets)
        data_settings |= _choose_size(data, data_settings)
        recorded, unrecorded = datasets[data].resolve(data_settings, "data."), datasets[data].facts.unrecorded
        choice = Choice(data, {key: value for key, value in recorded.items() if key not in unrecorded})
        return choice, load(data, data_settings, device)
    if data_settings:
        setting = next(iter(data_settings))
        raise UsageError(f"data.{setting} is a setting of a named data set, but the data were passed in.")
    wrapped = _wrap(data)
    facts = {"content": wrapped.content_hash(), "source": wrapped.source or wrapped.name}
    return Choice(GIVEN, facts), wrapped.to(device)


def _refuse_file(path: Path) -> UsageError:
    """Return an error for a file that is neither a table nor an array."""
    if path.suffix.lower() in SUFFIXES:
        return UsageError(f"{path} is one picture; pass the folder that holds the pictures (data={path.parent}).")
    endings = ", ".join((*TABLES, ".npy"))
    return UsageError(
        f"Data are read from a folder of pictures or a file ({endings}), and {path} is neither; save it as CSV."
    )


def unreadable_of(choice: Choice) -> Unreadable:
    """Return what a config says about unreadable pictures of a folder."""
    return choice.settings.get("unreadable", "refuse") if choice.name == "images" else "refuse"


def _choose_size(name: str, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return a size for the pictures of a folder or of a CSV file if they need one, and say so."""
    if name not in ("images", "paired") or "size" in settings:
        return {}
    known = datasets[name].resolve(settings, "data.")
    if name == "paired":
        groups = list_picture_columns(expand_user(known["csv"]), known["modalities"])
        chosen = min(filter(None, map(choose_size, groups)), default=None)
    else:
        folder = expand_user(known["folder"])
        names = list_pictures(folder) if folder.is_dir() else []
        readable = leave_out_unreadable(folder, names, known.get("unreadable", "refuse"))
        with name_unreadable(folder, readable):
            chosen = choose_size([folder / each for each in readable])
    if chosen is None:
        return {}
    announce(f"  data.size={chosen.size}: {chosen.reason}")
    return {"size": chosen.size}


def _wrap(data: Any) -> FactorDataset:
    if isinstance(data, FactorDataset):
        return data
    if isinstance(data, (np.ndarray, Tensor)):
        return from_array(data)
    return from_arrays(data) if isinstance(data, Mapping) else from_dataset(data)


def _is_paired(path: Path, settings: Mapping[str, Any], several: bool | None) -> bool:
    """Return whether the columns of a CSV file are modalities."""
    if several is not None:
        return several
    own = set(datasets["paired"].settings) - set(datasets["table"].settings)
    return not own.isdisjoint(settings) or has_pictures(path)


def _wrap_frame(frame: Any, settings: dict[str, Any], several: bool | None) -> FactorDataset:
    """Return a DataFrame as a table, or each of its columns as a modality."""
    if several:
        if settings:
            raise UsageError(
                f"data.{next(iter(settings))} is a setting of a file; pass the columns of a DataFrame only."
            )
        return from_arrays(read_cells(frame), name="DataFrame")
    check_options(from_table, settings)
    return from_table(frame, **settings)


class ChosenSize(NamedTuple):
    """The side of square pictures, and the reason for it."""

    size: int
    reason: str


def choose_size(paths: Sequence[Path]) -> ChosenSize | None:
    """Return the size for pictures, or None if they keep theirs: all alike, and no side above 128."""
    sizes = {read_size(path) for path in paths[:: max(1, len(paths) // HEADERS_TO_READ)]}
    if not sizes or (len(sizes) == 1 and max(next(iter(sizes))) <= LARGEST_KEPT_SIDE):
        return None
    shortest = min(min(size) for size in sizes)
    size = max((each for each in PICTURE_SIZES if each <= shortest), default=PICTURE_SIZES[0])
    if len(sizes) > 1:
        return ChosenSize(size, "the pictures have different sizes; their middle squares are resized")
    width, height = next(iter(sizes))
    return ChosenSize(size, f"{width}x{height} pixels would train slowly; the middle squares are resized")
