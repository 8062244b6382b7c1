"""Small files in the official formats of data sets."""

import io
import tarfile

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)


def noise(*shape):
    """Return bytes that no two calls share."""
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def add(archive, name, data):
    """Add a file to a tar archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def png(array):
    """Return an array as the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def pixels(data, row):
    """Return the stored pixels of a row."""
    return data.pixels.stored[row].numpy()
