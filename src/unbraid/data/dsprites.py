"""dSprites, the official file: binary 64 x 64 images of 3 shapes (Matthey et al., 2017).

Files: dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz. Its `metadata` is a pickled object and is not read.
"""

from pathlib import Path

import torch

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset, Pixels, pack_bits
from unbraid.data.file_formats import find_file, make_factors, read_npz_array, read_npz_rows, sort_into_grid
from unbraid.data.files import Recipe, load_stored
from unbraid.errors import DataError
from unbraid.progress import progress

NAMES = ("color", "shape", "scale", "orientation", "posX", "posY")
FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
SHAPES = ("square", "ellipse", "heart")


def recipe() -> Recipe:
    """Return the recipe for the official npz file, with the checksum that an independent loader lists."""
    url = f"https://github.com/google-deepmind/dsprites-dataset/raw/master/{FILE}"
    return Recipe("dsprites", convert, FILE, (Remote(url, "md5:7da33b31b13a06f4b04a70402ce90c2e"),))


@dataset("dsprites", year=2017, images=737_280, shape=(1, 64, 64), factors=NAMES[1:], recipe=recipe)
def dsprites() -> FactorDataset:
    """The official dSprites images: shape, scale, orientation and position."""
    return load_stored(recipe())


def convert(source: Path) -> FactorDataset:
    """Convert the npz file to packed bits and a grid, without the colour, which never varies."""
    path = find_file(source, FILE, "*dsprites*.npz")
    shape, pieces = read_npz_rows(path, "imgs")
    labels = read_npz_array(path, "latents_values")
    if len(shape) != 3 or labels.shape != (shape[0], len(NAMES)):
        raise DataError(f"{path}: imgs {shape} and latents_values {labels.shape} are not those of dSprites.")
    factors, table = make_factors(NAMES, labels.T)
    varying = [column for column, factor in enumerate(factors) if factor.size > 1]
    named = (f._replace(values=SHAPES) if f.name == "shape" and f.size == len(SHAPES) else f for f in factors)
    factors = tuple(factor for factor in named if factor.size > 1)
    packed = []
    with progress("Converting dSprites", shape[0]) as bar:
        for piece in pieces:
            packed.append(pack_bits(torch.from_numpy(piece) > 0))
            bar.advance(len(piece))
    pixels = Pixels(torch.cat(packed), (1, *shape[1:]), bits=True)
    return sort_into_grid(FactorDataset("dsprites", pixels, factors, table[:, varying], source="official file"))
