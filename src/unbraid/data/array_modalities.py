"""Your own things in several modalities, from arrays in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.data.images import from_array
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Modality
from unbraid.errors import DataError, unknown


def from_arrays(
    arrays: Mapping[str, Any],
    *,
    present: Mapping[str, Any] | None = None,
    factors: Any = None,
    factor_names: Sequence[str] | None = None,
    name: str = "arrays",
) -> MultimodalDataset:
    """Modalities from memory by name, with equally many rows: numpy arrays, torch tensors or lists.

    Images are as `from_array` takes them, [n, h, w] or [n, h, w, c] or [n, c, h, w]; vectors are [n, d], or floats [n];
    labels are words or whole numbers from 0 [n]. Missing rows are None in a list, NaN throughout, an empty word, a
    label of -1, or what `present` [n] of a modality says. `factors` are as `from_array` takes them.
    """
    for each in present or {}:
        if each not in arrays:
            raise unknown("modality", each, arrays, of=name)
    made = [_modality(f"{name}, {key}", key, given, (present or {}).get(key)) for key, given in arrays.items()]
    if len(made) < 2:
        told = f"{len(made)} modality ({made[0].name})" if made else "no modality"
        raise DataError(f"{name} has {told}, and two modalities or more are needed; pass one alone as an array.")
    data = multimodal(name, made, source="arrays")
    present_rows = data.present(torch.arange(len(data)))
    blank = torch.zeros(len(data), dtype=torch.bool) if present_rows is None else ~present_rows.any(-1)
    if bool(blank.any()):
        raise DataError(f"{name}: row {int(blank.nonzero()[0])} is missing in every modality; leave it out.")
    if factors is None:
        return data
    known = from_array(np.zeros((len(data), 1), np.float32), factors=factors, factor_names=factor_names, name=name)
    return multimodal(name, made, known.factors, known.table, source="arrays")


def _modality(where: str, name: str, given: Any, said: Any) -> Modality:
    array, there = fill_missing(where, given)
    if said is not None:
        mask = np.asarray(said.cpu() if isinstance(said, Tensor) else said)
        if mask.dtype != np.bool_ or mask.shape != there.shape:
            raise DataError(f"{where}: present must hold {len(there)} truth values, one for each row.")
        there = there & mask
    if array.dtype.kind == "U":
        values, kind = _words(array, there), "label"
        there = there & (array != "")
    elif array.ndim == 1 and array.dtype.kind in "iu":
        values, kind = _classes(where, array, there), "label"
        there = there & (array >= 0)
    else:
        array, there = blank_nan_rows(where, array[:, None] if array.ndim == 1 else array, there)
        values, kind = from_array(array, name=where).pixels, "vector" if array.ndim == 2 else "image"
    rows = torch.from_numpy(there)
    return Modality(name, kind, values, None if bool(rows.all()) else rows)


def fill_missing(where: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """An array without holes, and which rows [n] were none."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().numpy()
    if not hasattr(given, "__len__") or getattr(given, "ndim", 1) == 0:
        raise DataError(f"{where}: a row for each thing is needed, not one {type(given).__name__}.")
    loose = isinstance(given, (list, tuple)) or getattr(getattr(given, "dtype", None), "kind", "") == "O"
    items = list(given) if loose else given
    there = np.array([not _hole(item) for item in items], dtype=bool) if loose else np.ones(len(given), dtype=bool)
    if not there.any():
        raise DataError(f"{where}: no row has it; leave it out.")
    if not there.all():
        first = next(item for item in items if not _hole(item))
        blank = "" if isinstance(first, str) else _blank(first)
        items = [blank if _hole(item) else item for item in items]
    try:
        array = np.asarray(items)
    except ValueError as error:
        raise DataError(f"{where}: its rows differ in shape.") from error
    if array.dtype.kind not in "Ubuif" or array.ndim == 0 or len(array) == 0:
        raise DataError(f"{where}: numbers or words are needed, a row for each thing, not {array.dtype} {array.shape}.")
    if array.dtype.kind == "U" and array.ndim > 1:
        raise DataError(f"{where}: a label is one word for each row.")
    return array, there


def _hole(item: Any) -> bool:
    return item is None or (isinstance(item, float | np.floating) and item != item)


def _blank(item: Any) -> np.ndarray:
    array = np.asarray(item.detach().cpu() if isinstance(item, Tensor) else item)
    return np.full(array.shape, -1 if array.ndim == 0 and array.dtype.kind in "iu" else 0, array.dtype)


def _words(array: np.ndarray, there: np.ndarray) -> ClassLabels:
    known = there & (array != "")
    classes, places = np.unique(array[known], return_inverse=True)
    rows = np.full(len(array), -1)
    rows[known] = places
    return ClassLabels(torch.from_numpy(rows), tuple(map(str, classes)))


def _classes(where: str, array: np.ndarray, there: np.ndarray) -> ClassLabels:
    rows = np.where(there, array.astype(np.int64), -1)
    if rows.min() < -1:
        raise DataError(f"{where}: row {int(rows.argmin())} is {rows.min()}; labels are whole numbers from 0, or -1.")
    return ClassLabels(torch.from_numpy(rows), tuple(map(str, range(int(rows.max()) + 1))))


def blank_nan_rows(where: str, array: np.ndarray, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The array with zeros in rows that are missing or NaN throughout, and which rows are there."""
    if array.ndim == 2 and array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.float32)
    if array.dtype.kind != "f":
        return array, there
    lacking = np.isnan(array).reshape(len(array), -1)
    there = there & ~lacking.all(1)
    half = there & lacking.any(1)
    if half.any():
        raise DataError(f"{where}: row {int(half.argmax())} has numbers and NaN; give all of them, or none.")
    return np.where(there.reshape(-1, *[1] * (array.ndim - 1)), array, 0).astype(array.dtype), there
