"""3D faces: renderings of the Basel face model (Paysan et al., 2009), as used by Chen et al. (2018).

The model is licensed, so the renderings are the user's own: 50 identities, 21 azimuths, 11 elevations and 11 lightings
in the papers; any complete grid will do. The grid's order is identity, azimuth, elevation, lighting.

Files: an npz file with `images` [identity, azimuth, elevation, lighting, height, width] of bytes (or with a last axis
of 1 or 3 channels), or a folder of pictures named face_III_az_AA_el_EE_li_LL.png, whose numbers give the four factors.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import torch

from unbraid.data.base import dataset
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import has_npz_arrays, make_factors, make_grid, read_npz_array, sort_into_grid
from unbraid.data.files import Recipe, load_stored
from unbraid.data.picture_files import read_all, read_picture
from unbraid.errors import DataError, UsageError

NAMES = ("identity", "azimuth", "elevation", "lighting")
FILE_NAME = re.compile(r"face_(\d+)_az_(\d+)_el_(\d+)_li_(\d+)\.png$")
WANTS = "an npz file with 'images' or a folder of pictures face_III_az_AA_el_EE_li_LL.png"


def recipe(size: int, lighting: int | None = None) -> Recipe:
    """Return the recipe of all renderings; `lighting` chooses among them when they are loaded."""
    return Recipe("faces3d", partial(convert, size=size), WANTS, settings={"size": size})


@dataset("faces3d", year=2009, images=127_050, shape=(1, 64, 64), factors=NAMES, recipe=recipe, later=("lighting",))
def faces3d(*, size: int = 64, lighting: int | None = None) -> FactorDataset:
    """Rendered faces: identity, azimuth, elevation and lighting, or only those of one lighting."""
    whole = load_stored(recipe(size))
    return whole if lighting is None else fix_lighting(whole, lighting)


def fix_lighting(whole: FactorDataset, lighting: int) -> FactorDataset:
    """Return the faces of one lighting, without this factor (chen2018, section 6.2)."""
    if not 0 <= lighting < whole.sizes[-1]:
        raise UsageError(f"lighting is from 0 to {whole.sizes[-1] - 1} in these renderings, not {lighting}.")
    rows = torch.arange(lighting, len(whole), whole.sizes[-1])
    images = whole.images(rows).mul(255).round().byte()
    return FactorDataset(whole.name, Pixels(images, whole.shape), whole.factors[:-1], source=whole.source)


def convert(source: Path, size: int) -> FactorDataset:
    """Convert an npz file or a folder of pictures to a grid."""
    return _convert_folder(source, size) if source.is_dir() else _convert_npz(source, size)


def _convert_npz(path: Path, size: int) -> FactorDataset:
    if not has_npz_arrays(path, "images"):
        raise DataError(f"{path} is not {WANTS}.")
    images = read_npz_array(path, "images")
    images = images[..., None] if images.ndim == 6 else images
    if images.ndim != 7 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise DataError(f"{path}: images are {images.shape} {images.dtype}, expected bytes [{', '.join(NAMES)}, h, w].")
    if images.shape[4:6] != (size, size):
        raise DataError(
            f"{path}: images are {images.shape[4]} x {images.shape[5]}, not {size} x {size}; set data.size=…."
        )
    return make_grid("faces3d", NAMES, images, "own renderings")


def _convert_folder(folder: Path, size: int) -> FactorDataset:
    matches = {path: match for path in sorted(folder.rglob("*.png")) if (match := FILE_NAME.search(path.name))}
    if not matches:
        raise DataError(f"{folder} is not {WANTS}.")
    images = read_all(list(matches), lambda path: read_picture(path, str(path), "L", size), "3D faces")
    factors, table = make_factors(NAMES, np.array([list(map(int, match.groups())) for match in matches.values()]).T)
    pixels = Pixels(images, tuple(images.shape[1:]))
    return sort_into_grid(FactorDataset("faces3d", pixels, factors, table, source="own renderings"))
