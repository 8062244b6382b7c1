"""3D chairs: renderings of chair models from 31 azimuths and 2 elevations (Aubry et al., 2014).

The grid's order is chair, azimuth, elevation; chairs in the order of their folder names. The 600 x 600 originals, on
white, are turned grey (unless `color`) and resized; `crop` keeps only a central square of that many pixels.

Files: rendered_chairs.tar, or a folder with its <chair>/renders/image_NNN_pPPP_tTTT_rRRR.png, where PPP is the
elevation and TTT the azimuth in degrees.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import torch

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import iterate_files, make_factors, sort_into_grid
from unbraid.data.files import Recipe, load_stored
from unbraid.data.picture_files import read_picture
from unbraid.errors import DataError
from unbraid.progress import progress

FACTORS = ("chair", "azimuth", "elevation")
FILE_NAME = re.compile(r"([^/]+)/renders/image_\d+_p(\d+)_t(\d+)_r\d+\.png$")
WANTS = "rendered_chairs.tar or the unpacked folder"


def recipe(size: int, crop: int | None, color: bool) -> Recipe:
    """Return the recipe for the authors' archive, for which no published checksum is known."""
    url = "https://www.di.ens.fr/willow/research/seeing3Dchairs/data/rendered_chairs.tar"
    settings = {"size": size, "crop": crop, "color": color}
    return Recipe("chairs3d", partial(convert, **settings), WANTS, (Remote(url),), settings)


@dataset("chairs3d", year=2014, images=86_366, shape=(1, 64, 64), factors=FACTORS, recipe=recipe)
def chairs3d(*, size: int = 64, crop: int | None = None, color: bool = False) -> FactorDataset:
    """Rendered chairs: 1,393 models, 31 azimuths, 2 elevations."""
    return load_stored(recipe(size, crop, color))


def convert(source: Path, size: int, crop: int | None, color: bool) -> FactorDataset:
    """Convert the archive or folder, to a grid if no view is missing."""
    labels, images = [], []
    with progress("Reading 3D chairs", None) as bar:
        for path, data in iterate_files(source, ".png", WANTS):
            if match := FILE_NAME.search(path.as_posix()):
                labels.append((match[1], int(match[3]), int(match[2])))
                images.append(read_picture(data, str(path), "RGB" if color else "L", size, crop))
                bar.advance()
    if not images:
        raise DataError(f"{source} is not {WANTS}: it holds no <chair>/renders/image_NNN_pPPP_tTTT_rRRR.png.")
    factors, table = make_factors(FACTORS, [np.array(column) for column in zip(*labels, strict=True)])
    pixels = Pixels(torch.from_numpy(np.stack(images)), images[0].shape)
    return sort_into_grid(FactorDataset("chairs3d", pixels, factors, table, source="official files"))
