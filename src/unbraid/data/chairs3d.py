"""3D chairs: renderings of chair models from 31 azimuths and 2 elevations (Aubry et al., 2014).

The grid's order is chair, azimuth, elevation; chairs in the order of their folder names. The 600 x 600 originals, on
white, are turned grey (unless `color`) and resized; `crop` keeps only a central square of that many pixels.

Files: rendered_chairs.tar, or a folder with its <chair>/renders/image_NNN_pPPP_tTTT_rRRR.png, where PPP is the
elevation and TTT the azimuth in degrees.
"""

import re
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, factor_of, find_classes, sort_into_grid
from unbraid.data.files import Recipe, find, load_stored
from unbraid.data.picture_files import read_picture
from unbraid.errors import DataError
from unbraid.progress import progress

NAME = re.compile(r"([^/]+)/renders/image_\d+_p(\d+)_t(\d+)_r\d+\.png$")
WANTS = "rendered_chairs.tar or the unpacked folder"


def recipe(size: int, crop: int | None, color: bool) -> Recipe:
    """The authors' archive, for which no published checksum is known."""
    url = "https://www.di.ens.fr/willow/research/seeing3Dchairs/data/rendered_chairs.tar"
    settings = {"size": size, "crop": crop, "color": color}
    return Recipe("chairs3d", partial(convert, **settings), WANTS, (Remote(url),), settings)


@dataset(
    "chairs3d",
    year=2014,
    images=86_366,
    shape=(1, 64, 64),
    factors=("chair", "azimuth", "elevation"),
    recipe=recipe,
)
def chairs3d(*, size: int = 64, crop: int | None = None, color: bool = False) -> FactorDataset:
    """Rendered chairs: 1,393 models, 31 azimuths, 2 elevations."""
    return load_stored(recipe(size, crop, color))


def convert(source: Path, size: int, crop: int | None, color: bool) -> FactorDataset:
    """The archive or folder, as a grid where no view is missing."""
    labels, images = [], []
    with progress("Reading 3D chairs", None) as bar:
        for name, data in _files(source):
            if match := NAME.search(name):
                labels.append((match[1], int(match[3]), int(match[2])))
                images.append(read_picture(data, name, "RGB" if color else "L", size, crop))
                bar.advance()
    if not images:
        raise DataError(f"{source} is not {WANTS}: it holds no <chair>/renders/image_NNN_pPPP_tTTT_rRRR.png.")
    chairs, angles = np.array([label[0] for label in labels]), np.array([label[1:] for label in labels])
    (names,), chair = find_classes(chairs[:, None])
    (azimuths, elevations), angle = find_classes(angles)
    factors = (factor_of("chair", names), factor_of("azimuth", azimuths), factor_of("elevation", elevations))
    table = torch.from_numpy(np.concatenate([chair, angle], axis=1))
    pixels = Pixels(torch.from_numpy(np.stack(images)), images[0].shape)
    return sort_into_grid(FactorDataset("chairs3d", pixels, factors, table, source="official files"))


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of all pictures."""
    if source.is_dir() and not list(source.glob("*.tar")):
        for path in sorted(source.rglob("*.png")):
            yield path.as_posix(), path.read_bytes()
        return
    path = find(source, "rendered_chairs.tar", "*.tar")
    with explain_errors(path, WANTS), tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".png") else None
            if file is not None:
                yield member.name, file.read()
