"""Feature networks: what turns observations into the vectors that generative scores compare."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid.data import from_array
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import find_device, to_matrix, to_numpy
from unbraid.models import seeded
from unbraid.progress import progress
from unbraid.registry import Facts, Registry


@dataclass(frozen=True)
class FeatureNetwork:
    """A named network in evaluation mode: observations [n, *shape] become features [n, width].

    `batch` is how many it takes at a time; `details` go into every score that is computed from its features.
    """

    name: str
    module: nn.Module
    width: int
    batch: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, observations: Tensor) -> Tensor:
        """Features [n, width] as float32, where the observations are."""
        with torch.no_grad(), exact_convolutions():
            made = torch.cat([self.module(part) for part in observations.split(self.batch)])
        if not bool(made.isfinite().all()):
            raise DataError(f"The features of {self.name} hold NaN or infinite values.")
        return made


@dataclass(frozen=True)
class FeatureFacts(Facts):
    """`width` is the number of features."""

    width: int = 0


feature_network: Registry[Callable[..., FeatureNetwork], FeatureFacts] = Registry("feature network", FeatureFacts)
"""Decorator for a function `(dataset, rows, seed, *, settings) -> FeatureNetwork`.

A network that learns does so from these rows of the data set; one that is given looks only at the shape and device.
"""


def build(network: str, dataset: FactorDataset, rows: Tensor, seed: int, settings: Mapping[str, Any]) -> FeatureNetwork:
    """A registered network for these rows; initial weights come from the seed, and no generator is disturbed."""
    entry = feature_network[network]
    with seeded(seed):
        return entry.make(dataset, rows, seed, **entry.resolve(settings))


def image_features(images: Any, network: str = "efficientnet-lite0", *, seed: int = 0, **settings: Any) -> Tensor:
    """Features [n, width] of any images: bytes, or floats in [0, 1], as [n, h, w], [n, h, w, c] or [n, c, h, w].

    A tensor stays on its device. Networks that learn from labels need a run or a data set instead.
    """
    dataset = from_array(images, name="images")
    dataset = dataset.to(images.device) if isinstance(images, Tensor) else dataset
    rows = torch.arange(len(dataset), device=dataset.device)
    made, features = build(network, dataset, rows, seed, settings), []
    with progress(f"features of {network}", len(rows)) as bar:
        for part in rows.split(64):
            features.append(made(dataset.images(part)))
            bar.advance(len(part))
    return torch.cat(features)


def feature_pair(
    first: Any, second: Any, names: tuple[str, str] = ("features_a", "features_b"), paired: bool = False
) -> tuple[Tensor, Tensor]:
    """Two sets of features [rows, features] in float64, on the GPU if the first is there, else on the CPU."""
    pair = []
    for name, array in zip(names, (first, second), strict=True):
        shape = tuple(to_numpy(array).shape)
        if len(shape) != 2 or shape[1] == 0:
            raise UsageError(f"{name} must have the shape [rows, features], not {list(shape)}.")
        if shape[0] < 2:
            raise DataError(f"{name} must have at least 2 rows, not {shape[0]}.")
        pair.append(torch.as_tensor(to_matrix(name, array), device=find_device(first)))
    if pair[0].shape[1] != pair[1].shape[1]:
        raise UsageError(f"{names[0]} have {pair[0].shape[1]} columns, but {names[1]} {pair[1].shape[1]}.")
    if paired and len(pair[0]) != len(pair[1]):
        raise UsageError(f"Paired features must have as many rows, not {len(pair[0])} and {len(pair[1])}.")
    return pair[0], pair[1]


PIECE = {"cpu": 2**20, "cuda": 2**27}
"""Entries of a matrix of all pairs that are held at a time: a cache full on a CPU, a gigabyte on a GPU."""


def pieces(rows: Tensor, columns: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Rows, some at a time, and the number of the first of them, so that pairs with all columns fit into memory."""
    count = max(1, PIECE.get(rows.device.type, 2**20) // len(columns))
    with progress("pairs of features", len(rows)) as bar:
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            yield start, part
            bar.advance(len(part))


def refuse_other_shapes(name: str, dataset: FactorDataset) -> None:
    """Networks trained on photographs take pictures with one or three channels."""
    shape = tuple(dataset.shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(f"{name} takes images with 1 or 3 channels, not observations of shape {shape}.")


def as_photographs(images: Tensor, size: int, antialias: bool) -> Tensor:
    """Images [n, 1 or 3, h, w] as [n, 3, size, size] in [0, 1]: cut off, resized bilinearly, grey as three channels."""
    resized = functional.interpolate(
        images.clamp(0, 1), size=(size, size), mode="bilinear", align_corners=False, antialias=antialias
    )
    return resized.expand(-1, 3, -1, -1)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Convolutions in full float32 that give the same numbers twice, on a GPU, too."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


def batch_on(device: torch.device, cpu: int, gpu: int) -> int:
    """A convolutional network is fastest on a CPU while its maps fit into the cache, on a GPU when there is much."""
    return cpu if device.type == "cpu" else gpu
