"""Your own items in several modalities, from arrays in memory."""

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
    """Return modalities from memory, by name, with equally many rows: numpy arrays, torch tensors or lists.

    Images are [n, h, w], [n, h, w, c] or [n, c, h, w], as for `from_array`; vectors are [n, d], or floats [n]; labels
    are words or whole numbers from 0 [n]. A row is missing if it is None in a list, NaN throughout, an empty word, a
    label of -1, or False in the mask [n] that `present` has for a modality. `factors` are those of `from_array`.
    """
    masks = present or {}
    for modality in masks:
        if modality not in arrays:
            raise unknown("modality", modality, arrays, of=name)
    modalities = [_make_modality(f"{name}, {key}", key, array, masks.get(key)) for key, array in arrays.items()]
    if len(modalities) < 2:
        found = f"1 modality ({modalities[0].name})" if modalities else "no modality"
        raise DataError(f"{name} has {found}, and needs at least two modalities; pass a single one as an array.")
    data = multimodal(name, modalities, source="arrays")
    mask = data.present(torch.arange(len(data)))
    if mask is not None and not bool(mask.any(-1).all()):
        row = int((~mask.any(-1)).nonzero()[0])
        raise DataError(f"{name}: row {row} is missing in every modality; leave it out.")
    if factors is None:
        return data
    blank = np.zeros((len(data), 1), np.float32)
    labelled = from_array(blank, factors=factors, factor_names=factor_names, name=name)
    return multimodal(name, modalities, labelled.factors, labelled.table, source="arrays")


def _make_modality(where: str, name: str, given: Any, mask: Any) -> Modality:
    array, present = fill_missing(where, given)
    if mask is not None:
        mask = np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask)
        if mask.dtype != np.bool_ or mask.shape != present.shape:
            raise DataError(f"{where}: present must hold {len(present)} truth values, one for each row.")
        present = present & mask
    if array.dtype.kind == "U":
        present = present & (array != "")
        values, kind = _number_words(array, present), "label"
    elif array.ndim == 1 and array.dtype.kind in "iu":
        values, kind = _number_classes(where, array, present), "label"
        present = present & (array >= 0)
    else:
        array, present = blank_nan_rows(where, array[:, None] if array.ndim == 1 else array, present)
        values, kind = from_array(array, name=where).pixels, "vector" if array.ndim == 2 else "image"
    return Modality(name, kind, values, None if bool(present.all()) else torch.from_numpy(present))


def fill_missing(where: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as an array with blanks for those that are None or NaN, and a mask [n] of the others.

    `where` names the rows in errors.
    """
    if isinstance(given, Tensor):
        if given.is_sparse or given.is_meta:
            raise DataError(f"{where} is a sparse or meta tensor; plain numbers are needed.")
        given = given.detach().cpu().numpy()
    if not hasattr(given, "__len__") or getattr(given, "ndim", 1) == 0:
        raise DataError(f"{where}: pass one row for each item, not a single {type(given).__name__}.")
    present = np.ones(len(given), dtype=bool)
    if isinstance(given, (list, tuple)) or getattr(getattr(given, "dtype", None), "kind", "") == "O":
        given = list(given)
        present = np.array([not _is_missing(row) for row in given], dtype=bool)
    if not present.any():
        raise DataError(f"{where}: no row has it; leave it out.")
    if not present.all():
        blank = _make_blank(given[int(present.argmax())])
        given = [row if known else blank for row, known in zip(given, present, strict=True)]
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise DataError(f"{where}: its rows differ in shape.") from error
    if array.dtype.kind not in "Ubuif" or array.ndim == 0 or len(array) == 0:
        raise DataError(f"{where}: pass numbers or words, a row for each item, not {array.dtype} {array.shape}.")
    if array.dtype.kind == "U" and array.ndim > 1:
        raise DataError(f"{where}: a label is one word for each row.")
    return array, present


def _is_missing(row: Any) -> bool:
    return row is None or (isinstance(row, float | np.floating) and row != row)


def _make_blank(row: Any) -> Any:
    """Return a blank of the same form: an empty word, the label -1, or zeros."""
    if isinstance(row, str):
        return ""
    array = np.asarray(row.detach().cpu() if isinstance(row, Tensor) else row)
    return np.full(array.shape, -1 if array.ndim == 0 and array.dtype.kind in "iu" else 0, array.dtype)


def _number_words(words: np.ndarray, present: np.ndarray) -> ClassLabels:
    classes, places = np.unique(words[present], return_inverse=True)
    rows = np.full(len(words), -1)
    rows[present] = places
    return ClassLabels(torch.from_numpy(rows), tuple(map(str, classes)))


def _number_classes(where: str, labels: np.ndarray, present: np.ndarray) -> ClassLabels:
    rows = np.where(present, labels.astype(np.int64), -1)
    if rows.min() < -1:
        raise DataError(f"{where}: row {int(rows.argmin())} is {rows.min()}; labels are whole numbers from 0, or -1.")
    return ClassLabels(torch.from_numpy(rows), tuple(map(str, range(int(rows.max()) + 1))))


def blank_nan_rows(where: str, array: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the array with zeros in rows that are missing or NaN throughout, and a mask [n] of the others."""
    if array.ndim == 2 and array.dtype.kind in "iu" and array.dtype != np.uint8:
        array = array.astype(np.float32)
    if array.dtype.kind != "f":
        return array, present
    nan = np.isnan(array).reshape(len(array), -1)
    present = present & ~nan.all(1)
    partial = present & nan.any(1)
    if partial.any():
        raise DataError(f"{where}: row {int(partial.argmax())} has numbers and NaN; pass all of them, or none.")
    return np.where(present.reshape(-1, *[1] * (array.ndim - 1)), array, 0).astype(array.dtype), present
