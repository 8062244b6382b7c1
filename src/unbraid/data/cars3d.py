"""Cars3D: 183 car models from 24 azimuths and 4 elevations (Reed et al., 2015, Deep Visual Analogy-Making).

The grid's order is car, azimuth, elevation, with elevation fastest; cars in the order of their file names. The
original 128 x 128 images are averaged over 2 x 2 pixels.

Files: nips2015-analogy-data.tar.gz, a folder with its data/cars/*_mesh.mat (array `im`, 128 x 128 x 3 x 24 x 4), or an
npz file with `images` [car, azimuth, elevation, 64, 64, 3].
"""

import io
from pathlib import Path

import numpy as np

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import FactorDataset
from unbraid.data.file_formats import explain_errors, has_npz_arrays, iterate_files, make_grid, read_npz_array
from unbraid.data.files import Recipe, load_stored
from unbraid.errors import DataError

FACTORS = ("car", "azimuth", "elevation")
WANTS = "nips2015-analogy-data.tar.gz, a folder with its car meshes (*_mesh.mat), or an npz file with 'images'"


def recipe() -> Recipe:
    """Return the recipe for the original archive, with the checksum that two independent loaders list."""
    archive = "http://www.scottreed.info/files/nips2015-analogy-data.tar.gz"
    return Recipe("cars3d", convert, WANTS, (Remote(archive, "md5:4e866a7919c1beedf53964e6f7a23686"),))


@dataset("cars3d", year=2015, images=17_568, shape=(3, 64, 64), factors=FACTORS, recipe=recipe)
def cars3d() -> FactorDataset:
    """Rendered cars: 183 models, 24 azimuths, 4 elevations."""
    return load_stored(recipe())


def convert(source: Path) -> FactorDataset:
    """Convert the archive, a folder of meshes or an npz file to a grid."""
    is_npz = source.is_file() and has_npz_arrays(source, "images")
    images = read_npz_array(source, "images") if is_npz else _stack_meshes(source)
    if images.ndim != 6 or images.shape[-1] != 3 or images.dtype != np.uint8:
        found = f"{images.shape} {images.dtype}"
        raise DataError(f"{source}: images are {found}, expected bytes [car, azimuth, elevation, height, width, 3].")
    return make_grid("cars3d", FACTORS, images, "official files")


def _stack_meshes(source: Path) -> np.ndarray:
    meshes = {path.name: _read_mesh(data, path) for path, data in iterate_files(source, "_mesh.mat", WANTS)}
    if not meshes:
        raise DataError(f"{source} is not {WANTS}.")
    shapes = {mesh.shape for mesh in meshes.values()}
    if len(shapes) > 1:
        raise DataError(f"{source}: meshes differ in shape ({', '.join(map(str, sorted(shapes)))}).")
    return np.stack([meshes[name] for name in sorted(meshes)])


def _read_mesh(data: bytes, path: Path) -> np.ndarray:
    """Return one car's images [azimuth, elevation, height / 2, width / 2, channels]."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with explain_errors(path, "a car mesh with 'im'"):
        try:
            image = loadmat(io.BytesIO(data), variable_names=["im"])["im"]
        except (MatReadError, TypeError, NotImplementedError) as error:
            raise ValueError(str(error)) from error
        if image.ndim != 5 or image.dtype != np.uint8 or image.shape[0] % 2 or image.shape[1] % 2:
            raise ValueError(f"'im' is {image.shape} {image.dtype}")
        height, width, channels, azimuths, elevations = image.shape
        blocks = image.reshape(height // 2, 2, width // 2, 2, channels, azimuths, elevations)
        means = (blocks.sum(axis=(1, 3), dtype=np.uint16) + 2) // 4
        return means.astype(np.uint8).transpose(3, 4, 0, 1, 2)
