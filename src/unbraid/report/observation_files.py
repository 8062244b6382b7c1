"""Observations of a run as files: a picture of tiles, a folder of pictures, a CSV table or a NPY array."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from unbraid import atomic
from unbraid.data.code_files import write_array, write_table
from unbraid.data.table_columns import DIGITS, TableColumn, to_cells
from unbraid.errors import UsageError
from unbraid.report.pictures import FORMATS, Picture, tile_images, to_uint8

MAX_TILES_PER_ROW = 12


def write_observations(
    path: Path, values: Tensor, columns: Sequence[TableColumn] = (), names: Sequence[str] | None = None
) -> None:
    """Write observations [n, *shape] as the ending of the path says: .npy, .csv (rows), a picture, or a folder of them.

    `columns` are those of a table, and `names` the files of the rows in a folder.
    """
    ending, images = path.suffix.lower(), values.ndim == 4
    if ending == ".npy":
        write_array(path, values.cpu().numpy())
    elif images and ending.removeprefix(".") in FORMATS:
        tile_rows(values).save(path)
    elif images and not ending:
        _write_folder(path, values, names)
    elif not images and ending in (".csv", ".tsv"):
        write_table(path, _to_columns(values, columns))
    elif images:
        raise UsageError(f"Images are written as .png, .npy or to a folder, not as {path}.")
    else:
        raise UsageError(f"Rows of numbers are written as .csv or .npy, not as {path}.")


def write_comparison(path: Path, originals: Tensor, made: Tensor) -> None:
    """Write a picture of at most 12 originals above what a run makes of them."""
    pair = torch.stack([originals[:MAX_TILES_PER_ROW].cpu(), made[:MAX_TILES_PER_ROW].cpu()])
    tile_images(pair).save(path)


def tile_rows(images: Tensor) -> Picture:
    """Return a picture of images [n, channels, height, width] in rows of at most 12, as square as it can be."""
    across = min(MAX_TILES_PER_ROW, max(1, round(len(images) ** 0.5)))
    blank = images.new_ones((-len(images) % across, *images.shape[1:]))
    return tile_images(torch.cat([images, blank]).unflatten(0, (-1, across)))


def _write_folder(path: Path, images: Tensor, names: Sequence[str] | None) -> None:
    check_new_folder(path)
    digits = max(4, len(str(len(images) - 1)))
    files = [Path(name).with_suffix(".png") for name in names or [f"{row:0{digits}d}" for row in range(len(images))]]
    if any(file.is_absolute() or ".." in file.parts for file in files):
        files = [Path(file.name) for file in files]
    if len(set(files)) < len(files):
        files = [file.with_name(f"{row:0{digits}d}-{file.name}") for row, file in enumerate(files)]
    for file, image in zip(files, images, strict=True):
        write_picture(path / file, image)


def write_picture(path: Path, image: Tensor) -> None:
    """Write an image [channels, height, width] as a PNG file, grey unless it is in RGB."""
    array = to_uint8(image)
    with atomic.replacing(path, sync=False) as part:
        Image.fromarray(array if image.shape[0] == 3 else array[..., 0]).save(part, "PNG")


def check_new_folder(path: Path) -> None:
    """Raise if a folder to write to has files already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists and is not an empty folder; choose another one.")


def _to_columns(values: Tensor, columns: Sequence[TableColumn]) -> dict[str, list]:
    if columns:
        return to_cells(columns, values.cpu())
    return {
        f"x{place}": [float(f"{number:.{DIGITS}g}") for number in column.tolist()]
        for place, column in enumerate(values.cpu().unbind(-1))
    }
