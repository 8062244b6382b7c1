"""Labels of pictures from the folders that they are in: one folder per class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unbraid.data.base import expand_user
from unbraid.data.factors import Factor
from unbraid.data.picture_files import SUFFIXES

SUBFOLDERS = "subfolders"
"""Value of `labels` that takes the name of a picture's folder as its label."""

FACTOR = "folder"
"""Name of the factor."""


def has_labelled_subfolders(folder: Any) -> bool:
    """Return whether all pictures below a folder are in subfolders, and in at least two different ones."""
    if not isinstance(folder, (str, Path)) or not expand_user(folder).is_dir():
        return False
    entries = list(expand_user(folder).iterdir())
    if any(entry.suffix.lower() in SUFFIXES and entry.is_file() for entry in entries):
        return False
    holding = (entry for entry in entries if entry.is_dir() and _holds_picture(entry))
    return next(holding, None) is not None and next(holding, None) is not None


def _holds_picture(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES and path.is_file() for path in folder.rglob("*"))


def label_by_subfolder(names: Sequence[Path]) -> tuple[tuple[Factor, ...], Tensor]:
    """Return the factor `folder` and the table [pictures, 1] of relative paths; -1 for one that is in no subfolder."""
    labels = [name.parts[0] if len(name.parts) > 1 else None for name in names]
    values = tuple(sorted({label for label in labels if label is not None}))
    places = {label: place for place, label in enumerate(values)}
    table = torch.tensor([[-1 if label is None else places[label]] for label in labels], device="cpu")
    return (Factor(FACTOR, len(values), values),), table
