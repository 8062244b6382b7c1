"""MNIST with two more factors, thickness and width of the digits, measured on the images and cut into bins."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unbraid.data import storage
from unbraid.data.base import data_home
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.stroke_measures import measure_strokes
from unbraid.errors import DataError

BINS = 10
NAMES = ("thickness", "width")
_CACHE_VERSION = 1  # raise it whenever the same images should give other measures


def add_stroke_factors(data: FactorDataset) -> FactorDataset:
    """Return a data set of single-channel images with the additional factors `thickness` and `width`.

    Each has 10 bins with equally many rows; a bin's value is the median of its rows, in pixels.
    """
    columns = [bin_values(name, column) for name, column in zip(NAMES, _load_measures(data).T, strict=True)]
    values = data.values_of(torch.arange(len(data), device=data.device))
    table = torch.cat([values, *(column[:, None].to(values.device) for _, column in columns)], dim=1)
    return replace(data, factors=(*data.factors, *(factor for factor, _ in columns)), table=table)


def bin_values(name: str, values: np.ndarray, bins: int = BINS) -> tuple[Factor, Tensor]:
    """Return measured values [n] as a factor of `bins` values with about equally many rows, and the rows' bins [n]."""
    inner = np.quantile(values, np.arange(1, bins) / bins)
    place = np.searchsorted(inner, values, side="right")
    used, place = np.unique(place, return_inverse=True)  # many equal values may leave a bin without rows
    centres = tuple(round(float(np.median(values[place == k])), 3) for k in range(len(used)))
    return Factor(name, len(used), centres), torch.from_numpy(place.reshape(-1).astype(np.int64))


def _load_measures(data: FactorDataset) -> np.ndarray:
    """Return thickness and width of every image [n, 2], measured once (seconds) and cached in the data folder."""
    path = data_home() / f"{data.name}-strokes-{data.content_hash()[:16]}-v{_CACHE_VERSION}.safetensors"
    return storage.read_or_make(path, lambda: _measure(data)).pixels.stored.numpy()


def _measure(data: FactorDataset) -> FactorDataset:
    images = data.pixels.stored
    if images.ndim != 4 or images.shape[1] != 1 or data.pixels.bits:
        raise DataError(f"{data.name}: strokes can only be measured on images of one channel of bytes or floats.")
    measures = torch.from_numpy(measure_strokes(images[:, 0].cpu().numpy()).astype(np.float32))
    return FactorDataset(f"{data.name}-strokes", Pixels(measures, (2,)), source="measured")
