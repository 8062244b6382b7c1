"""SmallNORB: photographs of 50 toys in 5 categories (LeCun, Huang and Bottou, 2004), one of the two cameras.

The grid's order is category, instance, elevation, azimuth, lighting. The official training part holds the instances
4, 6, 7, 8, 9 of every category, the test part the others: those rows are held out. Azimuth value k means 20 k degrees,
elevation value k means 30 + 5 k degrees.

Files: the six files smallnorb-…-{training,testing}-{dat,cat,info}.mat, gzipped or not. They are a simple binary matrix
format, not MATLAB's: magic number, number of dimensions, at least three sizes, then the data, all little-endian.
"""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unbraid.data.base import dataset
from unbraid.data.download import Remote
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, find_file, sort_into_grid
from unbraid.data.files import Recipe, load_stored
from unbraid.data.picture_files import resize, stack
from unbraid.errors import DataError

FACTORS = (
    Factor("category", 5, ("animal", "human", "plane", "truck", "car")),
    Factor("instance", 10),
    Factor("elevation", 9, tuple(float(d) for d in range(30, 75, 5))),
    Factor("azimuth", 18, tuple(float(d) for d in range(0, 360, 20))),
    Factor("lighting", 6),
)
NAMES = tuple(factor.name for factor in FACTORS)
PARTS = {"training": "smallnorb-5x46789x9x18x6x2x96x96-training", "testing": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
CHECKSUMS = {
    "training-dat": "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
    "training-cat": "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
    "training-info": "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    "testing-dat": "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
    "testing-cat": "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
    "testing-info": "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
}
TYPES = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}
WANTS = "a folder with the six official smallnorb-….mat files"


def recipe(size: int) -> Recipe:
    """Return the recipe for the six official files, with the checksums of the TensorFlow Datasets catalogue."""
    host = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
    remotes = tuple(
        Remote(f"{host}{stem}-{kind}.mat.gz", f"sha256:{CHECKSUMS[f'{part}-{kind}']}")
        for part, stem in PARTS.items()
        for kind in ("dat", "cat", "info")
    )
    return Recipe("smallnorb", partial(convert, size=size), WANTS, remotes, {"size": size})


@dataset("smallnorb", year=2004, images=48_600, shape=(1, 64, 64), factors=NAMES, recipe=recipe)
def smallnorb(*, size: int = 64) -> FactorDataset:
    """Photographed toys: category, instance, elevation, azimuth and lighting, resized from 96 x 96 pixels."""
    return load_stored(recipe(size))


def convert(source: Path, size: int) -> FactorDataset:
    """Convert both official parts to one grid."""
    parts = [_read_part(source, part, size) for part in PARTS]
    images, table = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    held_out = torch.arange(len(parts[0][0]), len(images))
    pixels = Pixels(images, (1, size, size))
    return sort_into_grid(FactorDataset("smallnorb", pixels, FACTORS, table, held_out, "official files"))


def read_matrix(path: Path) -> np.ndarray:
    """Return the array in a binary matrix file, gzipped or not."""
    with explain_errors(path, "a binary matrix file"):
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        magic, dimensions = np.frombuffer(data[:8], "<i4")
        if magic not in TYPES:
            raise ValueError(f"it starts with {magic:#x}")
        start = 8 + 4 * max(3, dimensions)  # vectors and matrices are stored with padding sizes
        shape = np.frombuffer(data[8:start], "<i4")[:dimensions]
        return np.frombuffer(bytearray(data), TYPES[magic], offset=start).reshape(shape)


def _read_part(source: Path, part: str, size: int) -> tuple[Tensor, Tensor]:
    """Return images and factor values of one official part."""
    if not source.is_dir():
        raise DataError(f"{source} is not {WANTS}.")
    names = {kind: f"*{PARTS[part].rpartition('-')[0]}*-{part}-{kind}.mat" for kind in ("dat", "cat", "info")}
    dat, cat, info = (read_matrix(find_file(source, f"{name}.gz", name)) for name in names.values())
    if dat.ndim != 4 or cat.shape != dat.shape[:1] or info.shape != (len(dat), 4):
        raise DataError(f"{source}: the {part} files have shapes {dat.shape}, {cat.shape} and {info.shape}.")
    instance, elevation, azimuth, lighting = info.T
    table = np.stack([cat, instance, elevation, azimuth // 2, lighting], axis=1).astype(np.int64)
    if (table < 0).any() or (table >= [f.size for f in FACTORS]).any():
        raise DataError(f"{source}: the {part} files have factor values out of range.")
    first_camera = dat[:, 0]
    resized = (np.asarray(resize(Image.fromarray(image), size))[None] for image in first_camera)
    return stack(resized, len(dat), f"SmallNORB {part}"), torch.from_numpy(table)
