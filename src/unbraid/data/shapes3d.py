"""3D Shapes: a shape in a room, six factors, 64 x 64 colour images (Burgess and Kim, 2018).

Files: 3dshapes.h5 with `images` [480000, 64, 64, 3] and `labels` [480000, 6].
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, factor_of, find_classes, sort_into_grid, stack_channels_first
from unbraid.data.files import Recipe, find, load_stored
from unbraid.errors import DataError
from unbraid.extras import import_extra

NAMES = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
_ROWS = 4096


def recipe() -> Recipe:
    """The official file; checksum as listed in the TensorFlow Datasets catalogue."""
    url = "https://storage.googleapis.com/3d-shapes/3dshapes.h5"
    checksum = "sha256:0a0f6ed98baff276a50f3a081a7434d788da63cb135a98189b2a5b5769be1785"
    return Recipe("shapes3d", convert, "3dshapes.h5", (Remote(url, checksum),))


@dataset("shapes3d", year=2018, images=480_000, shape=(3, 64, 64), factors=NAMES, recipe=recipe)
def shapes3d() -> FactorDataset:
    """Rendered shapes in a room: three hues, scale, shape and orientation."""
    return load_stored(recipe())


def convert(source: Path) -> FactorDataset:
    """The h5 file as a grid."""
    path = find(source, "3dshapes.h5", "*.h5")
    h5py = import_extra("h5py", "data", "3dshapes.h5")
    with explain_errors(path, "an h5 file with 'images' and 'labels'"), h5py.File(path, "r") as file:
        images, labels = file["images"], np.asarray(file["labels"])
        if images.ndim != 4 or images.dtype != np.uint8 or labels.shape != (len(images), len(NAMES)):
            raise DataError(f"{path}: images {images.shape} and labels {labels.shape} are not those of 3D Shapes.")
        stored = stack_channels_first(_pieces(images), len(images), "3D Shapes")
    values, classes = find_classes(labels)
    factors = tuple(factor_of(name, found) for name, found in zip(NAMES, values, strict=True))
    pixels = Pixels(stored, tuple(stored.shape[1:]))
    return sort_into_grid(FactorDataset("shapes3d", pixels, factors, torch.from_numpy(classes), source="official file"))


def _pieces(images: Any) -> Iterator[np.ndarray]:
    for first in range(0, len(images), _ROWS):
        yield images[first : first + _ROWS]
