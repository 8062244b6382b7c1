"""CelebA: 202,599 aligned photographs of faces with 40 attributes (Liu et al., 2015).

The central 148 x 148 pixels of the 178 x 218 originals are resized to 64 x 64. Rows follow list_attr_celeba.txt. The
official test rows are held out where list_eval_partition.txt is present.

Files: a folder with img_align_celeba.zip, or the unpacked img_align_celeba/, and list_attr_celeba.txt beside it. They
must be obtained from the authors, who ask for agreement to their terms.
"""

import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unbraid.data.base import dataset
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.file_formats import explain_errors, find_file
from unbraid.data.files import Recipe, load_stored
from unbraid.data.picture_files import read_all, read_picture
from unbraid.errors import DataError

CROP = 148
"""Side of the central square that is kept, in pixels."""

WANTS = "a folder that holds img_align_celeba.zip (or the unpacked folder) and list_attr_celeba.txt"
_TEST_PART = 2


def recipe(size: int) -> Recipe:
    return Recipe("celeba", partial(convert, size=size), WANTS, settings={"size": size})


@dataset("celeba", year=2015, images=202_599, shape=(3, 64, 64), factors=("40 attributes",), recipe=recipe)
def celeba(*, size: int = 64) -> FactorDataset:
    """Photographs of faces with 40 attributes that are present or not."""
    return load_stored(recipe(size))


def convert(source: Path, size: int) -> FactorDataset:
    """Convert pictures and attributes to one data set."""
    folder = source if source.is_dir() else source.parent
    names, attributes, table = read_attributes(find_file(folder, "list_attr_celeba.txt"))
    with _open_pictures(source, names) as read:
        images = read_all(names, lambda name: read_picture(read(name), name, "RGB", size, CROP), "CelebA")
    factors = tuple(Factor(attribute, 2, ("no", "yes")) for attribute in attributes)
    pixels = Pixels(images, tuple(images.shape[1:]))
    return FactorDataset("celeba", pixels, factors, table, _read_test_rows(folder, names), "official files")


def read_attributes(path: Path) -> tuple[list[str], list[str], Tensor]:
    """Return file names, attribute names, and one row of zeros and ones per file."""
    with explain_errors(path, "the attribute list of CelebA"):
        count, header, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = [line.split() for line in lines if line.strip()]
        if len(rows) != int(count):
            raise ValueError(f"{count} rows announced, {len(rows)} present")
        values = np.array([row[1:] for row in rows], dtype=np.int64)
        if values.shape != (len(rows), len(header.split())) or not np.isin(values, (-1, 1)).all():
            raise ValueError("rows must hold a file name and one -1 or 1 per attribute")
    return [row[0] for row in rows], header.split(), torch.from_numpy((values + 1) // 2)


@contextmanager
def _open_pictures(source: Path, names: list[str]) -> Iterator[Callable[[str], bytes]]:
    """Yield a function that reads a picture by its name, from the zip file or the folder."""
    if source.is_dir() and (source / "img_align_celeba").is_dir():
        source = source / "img_align_celeba"
    if source.is_dir() and any(source.glob("*.jpg")):
        _check_pictures(source, names, {path.name for path in source.iterdir()})
        yield lambda name: (source / name).read_bytes()
        return
    path = find_file(source, "img_align_celeba.zip", "*.zip")
    with explain_errors(path, "the zip file of CelebA"), zipfile.ZipFile(path) as archive:
        members = {Path(name).name: name for name in archive.namelist()}
        _check_pictures(path, names, members)
        yield lambda name: archive.read(members[name])


def _check_pictures(source: Path, names: list[str], present: Collection[str]) -> None:
    for name in names:
        if name not in present:
            raise DataError(f"{name} is listed in list_attr_celeba.txt, but missing in {source}.")


def _read_test_rows(folder: Path, names: list[str]) -> Tensor | None:
    """Return the rows of the official test part, or None without a partition list."""
    for path in sorted(folder.rglob("list_eval_partition.txt")):
        with explain_errors(path, "the partition list of CelebA"):
            part = {name: int(number) for name, number in map(str.split, path.read_text().splitlines())}
            return torch.tensor([row for row, name in enumerate(names) if part[name] == _TEST_PART])
    return None
