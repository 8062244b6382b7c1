"""Your own images or vectors: a folder of pictures, an array or a torch Dataset."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unbraid.data.base import dataset, expand_user
from unbraid.data.factors import Factor, FactorDataset, Pixels, pack_bits
from unbraid.data.label_csv import SUBFOLDERS, label_by_subfolder, read_labels
from unbraid.data.picture_cache import decode_once
from unbraid.data.picture_files import GREY_MODES, SUFFIXES, count_bytes, flatten, list_pictures, read_alike
from unbraid.data.row_files import RowFile
from unbraid.data.streamed_pixels import Channels, Stream, StreamedPixels, stream_rows, streams
from unbraid.data.unreadable_pictures import Unreadable, leave_out_unreadable, name_unreadable
from unbraid.errors import DataError, UsageError
from unbraid.printable import shorten

MAX_FACTOR_VALUES = 2**31
"""A larger value is no number of a class, but a measurement."""

_MAX_CHANNELS = 4
_ROUNDING_SLACK = 1e-6  # a resize in float32 may overshoot by this much


@dataset("images", yours=True, later=("labels", "stream", "unreadable"), unrecorded=("stream",))
def images(
    *,
    folder: str | Path,
    size: int | None = None,
    labels: str | Path | None = None,
    stream: Stream = "auto",
    unreadable: Unreadable = "refuse",
) -> FactorDataset:
    """Pictures in a folder of yours, of any format and mode, with labels from subfolders or a CSV file."""
    return from_folder(folder, size=size, labels=labels, stream=stream, unreadable=unreadable)


@dataset("array", yours=True, later=("stream",), unrecorded=("stream",))
def array(
    *, file: str | Path, channels: Literal["first", "last"] | None = None, stream: Stream = "auto"
) -> FactorDataset:
    """Images or vectors in a .npy file of yours, which may be larger than memory."""
    return from_npy(file, channels=channels, stream=stream)


def from_folder(
    folder: str | Path,
    *,
    size: int | None = None,
    labels: str | Path | None = None,
    stream: Stream = "auto",
    unreadable: Unreadable = "refuse",
    name: str = "images",
) -> FactorDataset:
    """Return every picture below a folder, in the order of the paths.

    They become grey if all of them are, and RGB otherwise. `size` resizes the central square of each to size x size;
    without it, all must have the same size. `labels` is a CSV file with a line per picture (`read_labels`), or
    `subfolders`: the name of the first folder below this one is then the factor `folder`. `stream` decodes them once
    into a file that is read by rows (`unbraid.data.picture_cache`); `auto` does so if they would fill a quarter of the
    free memory. Pictures that cannot be read are refused, all by name, or left out (`unreadable="skip"`).
    """
    folder = expand_user(folder)
    if not folder.is_dir():
        place = "" if folder.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"{folder} is not a folder{place}.")
    every = list_pictures(folder)
    if not every:
        raise DataError(f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}).")
    names = leave_out_unreadable(folder, every, unreadable, tell=True)
    with name_unreadable(folder, names):
        pixels = _read_folder(folder, names, size, stream)
    if labels is None:
        return FactorDataset(name, pixels, source=str(folder))
    if labels == SUBFOLDERS:
        factors, table = label_by_subfolder([Path(each) for each in names])
    else:
        left_out = set(every).difference(names)
        factors, table = read_labels(expand_user(labels), [folder / each for each in names], folder, left_out)
    return FactorDataset(name, pixels, factors, table, source=str(folder))


def _read_folder(folder: Path, names: Sequence[str], size: int | None, stream: Stream) -> Pixels:
    if streams(stream, len(names) * count_bytes(folder / names[0], size)):
        file = decode_once(folder, names, size)
        return stream_rows(file, file.row_shape, "first", str(folder), checked=True)
    paths = [folder / each for each in names]
    stored = read_alike(paths, [str(path) for path in paths], size, str(folder))
    return Pixels(stored, tuple(stored.shape[1:]))


def from_npy(
    path: str | Path,
    *,
    channels: Literal["first", "last"] | None = None,
    stream: Stream = "auto",
    name: str | None = None,
) -> FactorDataset:
    """Return the rows of a .npy file, as `from_array` does for a memory-mapped array."""
    path = expand_user(path)
    file = RowFile.open(path)
    mapped = np.memmap(path, file.dtype, "r", file.offset, (file.count, *file.row_shape)) if file.count else np.empty(0)
    data = from_array(mapped, channels=channels, stream=stream, name=name or path.stem)
    return replace(data, source=str(path))


def from_array(
    array: Any,
    *,
    factors: Any = None,
    factor_names: Sequence[str] | None = None,
    channels: Literal["first", "last"] | None = None,
    stream: Stream = "auto",
    name: str = "array",
) -> FactorDataset:
    """Return images or feature vectors from memory: a numpy array, a torch tensor or nested lists.

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w]: bytes, truth values, or floats in [0, 1]. Vectors are [n, d]:
    bytes, or floats of any finite size. `factors` are whole numbers [n, k] (or [n]) from 0; -1 or NaN stands for a
    missing label. Floats that are exactly bytes / 255 are stored as bytes, which only saves memory. A memory-mapped
    array that would fill a quarter of the free memory stays on disk and is read by rows; `stream` decides otherwise.
    """
    pixels = _stream_pixels(array, channels, stream, name) or _load_pixels(array, channels, name)
    if factors is None:
        return FactorDataset(name, pixels, source="array")
    table = _make_table(factors, len(pixels), name)
    if factor_names is not None:
        known = isinstance(factor_names, (list, tuple)) and all(isinstance(each, str) for each in factor_names)
        if not known:
            raise UsageError(f"{name}: factor_names must be words, not {shorten(repr(factor_names))}.")
    names = factor_names or [f"factor {column}" for column in range(table.shape[1])]
    if len(names) != table.shape[1]:
        raise UsageError(f"{name}: {len(names)} factor names for {table.shape[1]} factors.")
    if len(set(names)) < len(names):
        raise UsageError(f"{name}: factor names must all be different.")
    sizes = (table.max(0).values + 1).tolist()
    if 0 in sizes:
        raise DataError(f"{name}: no row has a label of factor {names[sizes.index(0)]}; leave it out.")
    named = tuple(Factor(label, size) for label, size in zip(names, sizes, strict=True))
    return FactorDataset(name, pixels, named, table, source="array")


def _stream_pixels(array: Any, channels: Any, stream: Stream, name: str) -> StreamedPixels | None:
    """Return a memory-mapped array as rows on disk, or None if it is to be loaded into memory."""
    file = RowFile.of_memmap(array) if isinstance(array, np.memmap) and array.size else None
    if file is None or not streams(stream, file.nbytes):
        return None
    place = _find_channels(array.shape, channels, name)
    shape = {"none": array.shape[-2:] if array.ndim == 3 else array.shape[1:]}.get(place, array.shape[1:])
    if array.ndim == 3:
        shape = (1, *shape)
    elif place == "last":
        shape = (shape[-1], *shape[:-1])
    pixels = stream_rows(file, tuple(shape), place, name)
    if len(shape) == 3 and file.dtype.kind == "f":
        check_image_range(pixels.range.low, pixels.range.high, name)
    return pixels


def _load_pixels(array: Any, channels: Any, name: str) -> Pixels:
    tensor = _move_channels_first(_make_tensor(array, name), channels, name)
    if tensor.shape[0] == 0 or tensor.numel() == 0:
        raise DataError(f"{name} is empty: its shape is {tuple(tensor.shape)}.")
    return _store_pixels(tensor, name)


def from_dataset(source: Any, *, name: str = "dataset") -> FactorDataset:
    """Read a torch Dataset (or any sequence) of images, vectors or pictures into memory.

    An item may be a tuple whose first entry is the observation; a second entry that is a whole number becomes the
    factor `label`. If some items have such a label, it is missing for an item with -1, NaN, None or no second entry.
    """
    rows, labels = [], []
    for position, item in enumerate(_iterate_items(source)):
        if isinstance(item, tuple | list) and not item:
            raise DataError(f"Item {position} of {name} is empty.")
        first, label = (item[0], item[1] if len(item) > 1 else None) if isinstance(item, tuple | list) else (item, None)
        row = _make_observation(first, f"item {position} of {name}")
        if rows and row.shape != rows[0].shape:
            raise DataError(f"{name}: item {position} is {tuple(row.shape)}, item 0 is {tuple(rows[0].shape)}.")
        rows.append(row)
        labels.append(_parse_label(label))
    if not rows:
        raise DataError(f"{name} is empty.")
    channels = "first" if rows[0].ndim == 3 else None
    if any(label is None for label in labels) or max(labels) < 0:
        return from_array(torch.stack(rows), channels=channels, name=name)
    factors = np.array(labels, dtype=np.int64)
    return from_array(torch.stack(rows), factors=factors, factor_names=["label"], channels=channels, name=name)


def _make_tensor(array: Any, name: str) -> Tensor:
    if isinstance(array, Tensor):
        if array.is_sparse or array.is_complex() or array.is_meta:
            raise DataError(f"{name} is a sparse, complex or meta tensor; plain numbers are needed.")
        return array.detach().cpu()
    if np.ma.is_masked(array):
        raise DataError(f"{name} has {np.ma.count_masked(array):,} masked values; leave them out, or use x.filled(…).")
    try:
        array = np.asarray(array)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is not one array of numbers: its rows differ in shape or type.") from error
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} has dtype {array.dtype}; numbers are needed (uint8, bool or float).")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    plain = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.array(plain, order="C"))  # a copy: later changes of the array have no effect


def _move_channels_first(tensor: Tensor, channels: Literal["first", "last"] | None, name: str) -> Tensor:
    place = _find_channels(tuple(tensor.shape), channels, name)
    if place == "none":
        return tensor if tensor.ndim == 2 else tensor[:, None]
    return tensor if place == "first" else tensor.permute(0, 3, 1, 2).contiguous()


def _find_channels(shape: tuple[int, ...], channels: Literal["first", "last"] | None, name: str) -> Channels:
    """Return where the channels of images of a shape are; vectors [n, d] and grey images [n, h, w] have none."""
    if len(shape) in (2, 3):
        return "none"
    if len(shape) != 4:
        raise DataError(f"{name} has shape {shape}; [n, d], [n, h, w], [n, h, w, c] or [n, c, h, w] is needed.")
    if channels is not None and not (isinstance(channels, str) and channels in ("first", "last")):
        raise UsageError(f"channels must be 'first' or 'last', not {shorten(repr(channels))}.")
    if channels is None:
        first, last = shape[1] <= _MAX_CHANNELS, shape[3] <= _MAX_CHANNELS
        if first == last:
            raise DataError(f"{name} has shape {shape}; state where its channels are with channels='first' or 'last'.")
        return "first" if first else "last"
    return channels


def _store_pixels(tensor: Tensor, name: str) -> Pixels:
    shape = tuple(tensor.shape[1:])
    if tensor.dtype == torch.bool:
        return Pixels(pack_bits(tensor), shape, bits=True)
    if tensor.dtype == torch.uint8:
        if tensor.numel() and 0 < int(tensor.max()) <= 1:
            raise DataError(f"{name} holds bytes 0 and 1 only, which as bytes are black; pass it as x.astype(bool).")
        return Pixels(tensor, shape)
    if not tensor.is_floating_point():
        raise DataError(f"{name} holds {tensor.dtype}; use uint8 (0 … 255), bool or float.")
    tensor = tensor.to(torch.float32)
    finite = torch.isfinite(tensor).flatten(1).all(1)
    if not bool(finite.all()):
        raise DataError(f"{name} has NaN or infinite values, first in row {int((~finite).nonzero()[0])}.")
    if len(shape) == 1:
        return Pixels(tensor, shape)
    tensor = clamp_images(tensor, name)
    as_bytes = (tensor * 255).round().to(torch.uint8)
    return Pixels(as_bytes if torch.equal(as_bytes.to(torch.float32) / 255, tensor) else tensor, shape)


def clamp_images(images: Tensor, name: str) -> Tensor:
    """Clamp float images to [0, 1]; raise a `DataError` if more than rounding lies outside."""
    check_image_range(float(images.min()), float(images.max()), name)
    return images.clamp(0, 1)


def check_image_range(low: float, high: float, name: str) -> None:
    """Raise a `DataError` if float images hold values outside [0, 1]."""
    if low < -_ROUNDING_SLACK or high > 1 + _ROUNDING_SLACK:
        advice = "; divide by 255, or pass uint8" if low >= 0 and 1 < high <= 255 else ""
        raise DataError(f"{name} holds floats from {low:g} to {high:g}; images must lie in [0, 1]{advice}.")


def _make_table(factors: Any, count: int, name: str) -> Tensor:
    if np.ma.is_masked(factors):
        factors = np.ma.filled(factors, -1)  # a missing label
    try:
        table = factors.detach().cpu() if isinstance(factors, Tensor) else torch.from_numpy(np.array(factors))
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name}: factors must be whole numbers, a row for each item.") from error
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != count:
        raise DataError(f"{name}: factors have shape {tuple(table.shape)}, expected ({count}, factors).")
    if table.is_floating_point():
        table = table.nan_to_num(nan=-1.0, posinf=-2.0, neginf=-2.0)
    if table.dtype == torch.bool or int(table.min()) < -1 or bool((table != table.round()).any()):
        raise DataError(f"{name}: factors must be whole numbers from 0 (-1 or NaN where a label is missing).")
    if float(table.max()) >= MAX_FACTOR_VALUES:
        raise DataError(f"{name}: a factor has the value {float(table.max()):g}; number its values from 0.")
    return table.to(torch.int64)


def _iterate_items(source: Any) -> Iterable[Any]:
    if isinstance(source, (str, bytes)):
        raise UsageError(f"{shorten(repr(source))} names no data; pass the data themselves.")
    if hasattr(source, "columns"):
        raise UsageError(
            f"A table ({type(source).__name__}) is not one array; pass its columns by name, or as a CSV file."
        )
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _read_items(source)
    if hasattr(source, "__iter__"):
        return iter(source)
    raise UsageError(f"A data set must have a length and items, or be iterable; {type(source).__name__} is neither.")


def _read_items(source: Any) -> Iterator[Any]:
    for position in range(len(source)):
        try:
            yield source[position]
        except (LookupError, TypeError) as error:
            raise DataError(f"Item {position} of the data cannot be read ({type(error).__name__}: {error}).") from error


def _make_observation(item: Any, name: str) -> Tensor:
    if isinstance(item, Image.Image):
        mode = "L" if item.mode in GREY_MODES else "RGB"
        array = np.array(flatten(item, mode))
        return torch.from_numpy(array[None] if mode == "L" else array.transpose(2, 0, 1))
    tensor = _make_tensor(item, name)
    if tensor.ndim == 3 and tensor.shape[0] > _MAX_CHANNELS >= tensor.shape[2]:
        tensor = tensor.permute(2, 0, 1)
    return tensor


def _parse_label(label: Any) -> int | None:
    """Return a label as an integer, -1 if it is missing, and None for anything else."""
    if label is None or (isinstance(label, float | np.floating) and label != label):
        return -1
    whole = isinstance(label, Tensor) and label.numel() == 1 and not label.is_floating_point()
    return int(label) if whole or isinstance(label, int | np.integer | np.bool_) else None
