"""3D Shapes: a shape in a room, six factors, 64 x 64 colour images (Burgess and Kim, 2018).

Files: 3dshapes.h5 with `images` [480000, 64, 64, 3] and `labels` [480000, 6].
"""

from pathlib import Path

import numpy as np

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, find_file, make_factors, sort_into_grid, stack_channels_first
from unbraid.data.files import Recipe, load_stored
from unbraid.errors import DataError
from unbraid.extras import import_extra

NAMES = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
_ROWS_PER_READ = 4096


def recipe() -> Recipe:
    """Return the recipe for the official file, with the checksum of the TensorFlow Datasets catalogue."""
    url = "https://storage.googleapis.com/3d-shapes/3dshapes.h5"
    checksum = "sha256:0a0f6ed98baff276a50f3a081a7434d788da63cb135a98189b2a5b5769be1785"
    return Recipe("shapes3d", convert, "3dshapes.h5", (Remote(url, checksum),))


@dataset("shapes3d", year=2018, images=480_000, shape=(3, 64, 64), factors=NAMES, recipe=recipe)
def shapes3d() -> FactorDataset:
    """Rendered shapes in a room: three hues, scale, shape and orientation."""
    return load_stored(recipe())


def convert(source: Path) -> FactorDataset:
    """Convert the h5 file to a grid."""
    path = find_file(source, "3dshapes.h5", "*.h5")
    h5py = import_extra("h5py", "data", "3dshapes.h5")
    with explain_errors(path, "an h5 file with 'images' and 'labels'"), h5py.File(path, "r") as file:
        images, labels = file["images"], np.asarray(file["labels"])
        if images.ndim != 4 or images.dtype != np.uint8 or labels.shape != (len(images), len(NAMES)):
            raise DataError(f"{path}: images {images.shape} and labels {labels.shape} are not those of 3D Shapes.")
        pieces = (images[first : first + _ROWS_PER_READ] for first in range(0, len(images), _ROWS_PER_READ))
        stacked = stack_channels_first(pieces, len(images), "3D Shapes")
    factors, table = make_factors(NAMES, labels.T)
    pixels = Pixels(stacked, tuple(stacked.shape[1:]))
    return sort_into_grid(FactorDataset("shapes3d", pixels, factors, table, source="official file"))
