"""Feature networks, which map observations to the vectors that generative scores compare."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid.data import from_array
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import find_device, to_matrix, to_numpy
from unbraid.progress import track
from unbraid.registry import Facts, Registry


@dataclass(frozen=True)
class FeatureNetwork:
    """A named network in evaluation mode: observations [n, *shape] become features [n, width].

    `batch` is the number of observations per forward pass. Every score of these features records `details`.
    """

    name: str
    module: nn.Module
    width: int
    batch: int
    details: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, observations: Tensor) -> Tensor:
        with torch.no_grad(), exact_convolutions():
            features = torch.cat([self.module(part) for part in observations.split(self.batch)])
        if not bool(features.isfinite().all()):
            raise DataError(f"The features of {self.name} hold NaN or infinite values.")
        return features


@dataclass(frozen=True)
class FeatureFacts(Facts):
    """`width` is the number of features."""

    width: int = 0


feature_network: Registry[Callable[..., FeatureNetwork], FeatureFacts] = Registry("feature network", FeatureFacts)
"""Decorator for a function `(dataset, rows, seed, *, settings) -> FeatureNetwork`.

A trained network learns from these rows of the data set; a pretrained one uses only their shape and device. Modules
are constructed under `seeded(seed)`, which leaves the global generator alone. Training stays outside: it slows each
operation down.
"""


def build_network(
    network: str, dataset: FactorDataset, rows: Tensor, seed: int, settings: Mapping[str, Any]
) -> FeatureNetwork:
    """Return a registered network for these rows."""
    entry = feature_network[network]
    return entry.make(dataset, rows, seed, **entry.resolve(settings))


def image_features(images: Any, network: str = "efficientnet-lite0", *, seed: int = 0, **settings: Any) -> Tensor:
    """Return features [n, width] of images [n, h, w], [n, h, w, c] or [n, c, h, w]: bytes, or floats in [0, 1].

    A tensor stays on its device. Networks that learn from labels need a run or a data set instead.
    """
    dataset = from_array(images, name="images")
    dataset = dataset.to(images.device) if isinstance(images, Tensor) else dataset
    rows = torch.arange(len(dataset), device=dataset.device)
    module = build_network(network, dataset, rows, seed, settings)
    return torch.cat([module(dataset.images(part)) for part in track(f"features of {network}", rows.split(64))])


def read_feature_pair(
    first: Any, second: Any, names: tuple[str, str] = ("features_a", "features_b"), paired: bool = False
) -> tuple[Tensor, Tensor]:
    """Return two sets of features [rows, features] in float64, on the GPU if the first one is."""
    pair = []
    for name, array in zip(names, (first, second), strict=True):
        shape = tuple(to_numpy(array).shape)
        if len(shape) != 2 or shape[1] == 0:
            raise UsageError(f"{name} must have the shape [rows, features], not {list(shape)}.")
        if shape[0] < 2:
            raise DataError(f"{name} must have at least 2 rows, not {shape[0]}.")
        pair.append(torch.as_tensor(to_matrix(name, array), device=find_device(first)))
    if pair[0].shape[1] != pair[1].shape[1]:
        raise UsageError(f"{names[0]} have {pair[0].shape[1]} columns, but {names[1]} have {pair[1].shape[1]}.")
    if paired and len(pair[0]) != len(pair[1]):
        raise UsageError(f"Paired features need equal numbers of rows, not {len(pair[0])} and {len(pair[1])}.")
    return pair[0], pair[1]


MAX_PAIRS_IN_MEMORY = {"cpu": 2**18, "cuda": 2**27}
"""Entries of a pairwise matrix: they fill a CPU's cache, or a gigabyte on a GPU."""


def split_rows(rows: Tensor, columns: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows, each with its first index, so that their pairs with all columns fit into memory."""
    count = max(1, MAX_PAIRS_IN_MEMORY.get(rows.device.type, 2**18) // len(columns))
    yield from zip(range(0, len(rows), count), track("pairs of features", rows.split(count)), strict=True)


def take_rows(x: Tensor, rows: np.ndarray) -> Tensor:
    """Return rows of a tensor on any device."""
    return x[torch.as_tensor(rows, device=x.device)]


def refuse_non_images(name: str, dataset: FactorDataset) -> None:
    """Raise unless the observations are images with 1 or 3 channels, as networks for photographs need."""
    shape = tuple(dataset.shape)
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(f"{name} takes images with 1 or 3 channels, not observations of shape {shape}.")


def resize_to_rgb(images: Tensor, size: int, antialias: bool) -> Tensor:
    """Return images [n, 1 or 3, h, w] as [n, 3, size, size]: clamped to [0, 1] and resized bilinearly."""
    resized = functional.interpolate(
        images.clamp(0, 1), size=(size, size), mode="bilinear", align_corners=False, antialias=antialias
    )
    return resized.expand(-1, 3, -1, -1)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Run convolutions in full float32 and deterministically, on a GPU as well."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False, allow_tf32=False):
        yield


def choose_batch_size(device: torch.device, cpu: int, gpu: int) -> int:
    """Return a batch size: convolutions want small batches on a CPU, for its cache, and large ones on a GPU."""
    return cpu if device.type == "cpu" else gpu
