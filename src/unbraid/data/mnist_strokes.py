"""MNIST with two more factors: how thick and how wide a digit is, measured on its image and cut into bins."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unbraid.data import storage as stored
from unbraid.data.base import data_home
from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.data.stroke_measures import measure_strokes
from unbraid.errors import DataError

BINS = 10
NAMES = ("thickness", "width")
_VERSION = 1  # part of the cache's name: raise it whenever the same images should give other measures


def add_stroke_factors(data: FactorDataset) -> FactorDataset:
    """A data set of single-channel images with the factors `thickness` and `width` beside its own.

    Each is cut into 10 bins of as many rows each; a bin's value is the median, in pixels, of its rows.
    """
    columns = [bin_values(name, column) for name, column in zip(NAMES, measures(data).T, strict=True)]
    own = data.values_of(torch.arange(len(data), device=data.device))
    table = torch.cat([own, *(column[:, None].to(own.device) for _, column in columns)], dim=1)
    return replace(data, factors=(*data.factors, *(factor for factor, _ in columns)), table=table)


def bin_values(name: str, values: np.ndarray, bins: int = BINS) -> tuple[Factor, Tensor]:
    """A measured quantity [n] as a factor of `bins` values with about as many rows each, and the rows' bins [n]."""
    inner = np.quantile(values, np.arange(1, bins) / bins)
    place = np.searchsorted(inner, values, side="right")
    kept, place = np.unique(place, return_inverse=True)  # many equal values may leave a bin without rows
    centres = tuple(round(float(np.median(values[place == k])), 3) for k in range(len(kept)))
    return Factor(name, len(kept), centres), torch.from_numpy(place.reshape(-1).astype(np.int64))


def measures(data: FactorDataset) -> np.ndarray:
    """Thickness and width of every image [n, 2], measured once (seconds) and kept in the data folder."""
    path = data_home() / f"{data.name}-strokes-{data.content_hash()[:16]}-v{_VERSION}.safetensors"
    if path.exists():
        try:
            return stored.read(path).pixels.stored.numpy()
        except DataError:  # damaged: measured again, and written anew
            pass
    images = data.pixels.stored
    if images.ndim != 4 or images.shape[1] != 1 or data.pixels.bits:
        raise DataError(f"{data.name}: strokes can only be measured on images of one channel of bytes or floats.")
    found = measure_strokes(images[:, 0].cpu().numpy()).astype(np.float32)
    kept = FactorDataset(f"{data.name}-strokes", Pixels(torch.from_numpy(found), (2,)), source="measured")
    stored.save(path, kept)
    return found
