"""Cars3D: 183 car models from 24 azimuths and 4 elevations (Reed et al., 2015, Deep Visual Analogy-Making).

The grid's order is car, azimuth, elevation, with elevation fastest; cars in the order of their file names. The
original 128 x 128 images are averaged over 2 x 2 pixels.

Files: nips2015-analogy-data.tar.gz, a folder with its data/cars/*_mesh.mat (array `im`, 128 x 128 x 3 x 24 x 4), or an
npz file with `images` [car, azimuth, elevation, 64, 64, 3].
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.file_formats import npz_array, npz_has, reading
from unbraid.data.files import Recipe, find, load_stored
from unbraid.errors import DataError

FACTORS = ("car", "azimuth", "elevation")
WANTS = "nips2015-analogy-data.tar.gz, a folder with its car meshes (*_mesh.mat), or an npz file with 'images'"


def recipe() -> Recipe:
    """The original archive, with the checksum that two independent loaders list."""
    archive = "http://www.scottreed.info/files/nips2015-analogy-data.tar.gz"
    return Recipe("cars3d", convert, WANTS, (Remote(archive, "md5:4e866a7919c1beedf53964e6f7a23686"),))


@dataset("cars3d", year=2015, images=17_568, shape=(3, 64, 64), factors=FACTORS, recipe=recipe)
def cars3d() -> FactorDataset:
    """Rendered cars: 183 models, 24 azimuths, 4 elevations."""
    return load_stored(recipe())


def convert(source: Path) -> FactorDataset:
    """The archive, a folder of meshes or an npz file as a grid."""
    if source.is_file() and npz_has(source, "images"):
        images = npz_array(source, "images")
    else:
        images = _stack(source)
    if images.ndim != 6 or images.shape[-1] != 3 or images.dtype != np.uint8:
        found = f"{images.shape} {images.dtype}"
        raise DataError(f"{source}: images are {found}, expected bytes [car, azimuth, elevation, height, width, 3].")
    factors = tuple(Factor(name, size) for name, size in zip(FACTORS, images.shape[:3], strict=True))
    flat = torch.from_numpy(images.reshape(-1, *images.shape[3:])).permute(0, 3, 1, 2).contiguous()
    return FactorDataset("cars3d", Pixels(flat, tuple(flat.shape[1:])), factors, source="official files")


def _stack(source: Path) -> np.ndarray:
    """Every mesh, in the order of file names."""
    meshes = dict(_from_folder(source) if source.is_dir() and list(source.rglob("*_mesh.mat")) else _from_tar(source))
    if not meshes:
        raise DataError(f"{source} is not {WANTS}.")
    shapes = {mesh.shape for mesh in meshes.values()}
    if len(shapes) > 1:
        raise DataError(f"{source}: meshes differ in shape ({', '.join(map(str, sorted(shapes)))}).")
    return np.stack([meshes[name] for name in sorted(meshes)])


def _from_folder(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in sorted(folder.rglob("*_mesh.mat")):
        yield path.name, _mesh(path.read_bytes(), path)


def _from_tar(source: Path) -> Iterator[tuple[str, np.ndarray]]:
    path = find(source, "*.tar.gz", "*.tgz", "*.tar")
    with reading(path, WANTS), tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith("_mesh.mat") else None
            if file is not None:
                yield Path(member.name).name, _mesh(file.read(), path / member.name)


def _mesh(data: bytes, path: Path) -> np.ndarray:
    """One car's images [azimuth, elevation, height / 2, width / 2, channels]."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(path, "a car mesh with 'im'"):
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
