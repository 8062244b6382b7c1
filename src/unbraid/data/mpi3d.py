"""MPI3D: a robot arm with an object, seven factors, 64 x 64 colour images (Gondal et al., 2019).

Files: mpi3d_toy.npz, mpi3d_realistic.npz or mpi3d_real.npz with `images` [1036800, 64, 64, 3]; about 13 GB each once
converted, and as much memory while converting.
"""

import math
from functools import partial
from pathlib import Path
from typing import Literal

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.file_formats import find_file, read_npz_rows, stack_channels_first
from unbraid.data.files import Recipe, load_stored
from unbraid.errors import DataError

Variant = Literal["toy", "realistic", "real"]

FACTORS = (
    Factor("object_color", 6, ("white", "green", "red", "blue", "brown", "olive")),
    Factor("object_shape", 6, ("cone", "cube", "cylinder", "hexagonal", "pyramid", "sphere")),
    Factor("object_size", 2, ("small", "large")),
    Factor("camera_height", 3, ("top", "center", "bottom")),
    Factor("background_color", 3, ("purple", "sea green", "salmon")),
    Factor("horizontal_axis", 40),
    Factor("vertical_axis", 40),
)
NAMES = tuple(factor.name for factor in FACTORS)
CHECKSUMS: dict[Variant, str] = {
    "toy": "md5:55889cb7c7dfc655d6e0277beee88868",
    "realistic": "md5:59a6225b88b635365f70c91b3e52f70f",
    "real": "md5:0f33f609918fb5c97996692f91129802",
}


def recipe(variant: Variant) -> Recipe:
    """Return the recipe for one of the official files, with the checksum that an independent loader lists."""
    file = f"mpi3d_{variant}.npz"
    url = f"https://storage.googleapis.com/disentanglement_dataset/Final_Dataset/{file}"
    remotes = (Remote(url, CHECKSUMS[variant]),)
    return Recipe("mpi3d", partial(convert, variant=variant), file, remotes, {"variant": variant})


@dataset("mpi3d", year=2019, images=1_036_800, shape=(3, 64, 64), factors=NAMES, recipe=recipe)
def mpi3d(*, variant: Variant = "toy") -> FactorDataset:
    """A robot arm that holds an object: drawn simply, rendered realistically, or photographed."""
    return load_stored(recipe(variant))


def convert(source: Path, variant: Variant, factors: tuple[Factor, ...] = FACTORS) -> FactorDataset:
    """Convert the npz file to a grid in the file's own order."""
    path = find_file(source, f"mpi3d_{variant}.npz")
    shape, pieces = read_npz_rows(path, "images")
    count = math.prod(f.size for f in factors)
    if len(shape) != 4 or shape[-1] != 3 or shape[0] != count:
        raise DataError(f"{path}: images are {shape}, expected ({count}, 64, 64, 3).")
    images = stack_channels_first(pieces, count, f"MPI3D {variant}")
    return FactorDataset("mpi3d", Pixels(images, tuple(images.shape[1:])), factors, source=f"official {variant} file")
