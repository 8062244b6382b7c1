"""Inception v3 as the Frechet inception distance uses it (heusel2017): 2,048 features of the last average pooling.

The distance is defined by one set of weights, TensorFlow's of 2015-12-05. The user provides their usual PyTorch
conversion (`pt_inception-2015-12-05-….pth`), whose parameter names this module has. That network differs from Szegedy
et al. (2016) in its pooling branches: averages leave the padding out, and the last block takes the maximum. Images are
resized bilinearly to 299 x 299, without antialiasing, and scaled to [-1, 1], as is usual with that file.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from unbraid.data.base import expand_user
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.metrics.generative.features.base import (
    FeatureNetwork,
    choose_batch_size,
    feature_network,
    refuse_non_images,
    resize_to_rgb,
)
from unbraid.metrics.needs import INCEPTION_VARIABLE, NO_WEIGHTS
from unbraid.seeding import seeded

NAME = "inception"
WIDTH = 2048
SIZE = 299

Pool = Literal["mean", "max", "stride"]
Layer = tuple[str, int, tuple[int, int]]
"""Suffix of the name, channels, kernel."""

Branches = dict[str, Sequence[Layer]]


@feature_network(NAME, reference="heusel2017", width=WIDTH)
def inception(dataset: FactorDataset, rows: Tensor, seed: int, *, weights: str | None = None) -> FeatureNetwork:
    """Inception v3 of the FID; `weights` is its file, by default the environment variable UNBRAID_INCEPTION."""
    refuse_non_images(NAME, dataset)
    path = find_weights(weights)
    with seeded(seed):
        module = load_inception(path).to(dataset.device)
    return FeatureNetwork(
        NAME, module, WIDTH, choose_batch_size(dataset.device, cpu=4, gpu=128), {"weights": path.name}
    )


def find_weights(weights: str | None) -> Path:
    """Return the file that the setting or the environment names."""
    name = weights or os.environ.get(INCEPTION_VARIABLE)
    if not name:
        raise UsageError(NO_WEIGHTS)
    path = expand_user(name)
    if not path.is_file():
        raise UsageError(f"There is no file {path} with Inception weights.")
    return path


def load_inception(path: Path) -> "Inception":
    """Return the network with the weights of a file, in evaluation mode."""
    tensors, network = _read_tensors(path), Inception()
    expected, found = _shapes(network.state_dict()), _shapes(tensors)
    for name in (*expected, *found):
        if expected.get(name) != found.get(name):
            shape, wanted = found.get(name, "nothing"), expected.get(name, "nothing")
            raise DataError(f"{path} is not the Inception v3 of the FID: at {name} it has {shape}, not {wanted}.")
    network.load_state_dict({name: tensors[name].float() for name in expected}, strict=False)
    return network.eval().requires_grad_(False)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors except BatchNorm's batch counters, which some files leave out."""
    return {name: tuple(x.shape) for name, x in tensors.items() if not name.endswith("num_batches_tracked")}


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path} cannot be read as weights: it is damaged or holds more than tensors.") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"{path} does not hold named tensors.")
    return tensors


class Convolution(nn.Module):
    """A convolution without bias, then batch normalisation and ReLU."""

    def __init__(self, width: int, channels: int, kernel: tuple[int, int], stride: int = 1, same: bool = True) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)
        self.conv = nn.Conv2d(width, channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Parallel branches of convolutions and one of pooling, concatenated.

    A branch is a chain of layers; a pair of layers whose names end in a and b shares its input. With the pool `stride`
    the last layer of each branch and the pooling halve the image.
    """

    def __init__(self, width: int, branches: Branches, pool: Pool, pooled: int = 0) -> None:
        super().__init__()
        self.branches = branches
        self.pool = pool
        for branch, layers in branches.items():
            before = width
            for position, (name, channels, kernel) in enumerate(layers):
                halves = pool == "stride" and position == len(layers) - 1
                layer = Convolution(before, channels, kernel, stride=2 if halves else 1, same=not halves)
                self.add_module(branch + name, layer)
                before = before if name.endswith("a") else channels
        if pooled:
            self.branch_pool = Convolution(width, pooled, (1, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for branch, layers in self.branches.items():
            y = x
            for name, _, _ in layers:
                layer = self.get_submodule(branch + name)
                if name.endswith("a"):
                    outputs.append(layer(y))
                else:
                    y = layer(y)
            outputs.append(y)
        return torch.cat([*outputs, self._pool(x)], dim=1)

    def _pool(self, x: Tensor) -> Tensor:
        if self.pool == "stride":
            return functional.max_pool2d(x, 3, stride=2)
        if self.pool == "max":
            return self.branch_pool(functional.max_pool2d(x, 3, stride=1, padding=1))
        return self.branch_pool(functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False))


def _block_35(width: int, pooled: int) -> Mixed:
    """Return a block for maps of 35 x 35."""
    branches: Branches = {
        "branch1x1": [("", 64, (1, 1))],
        "branch5x5": [("_1", 48, (1, 1)), ("_2", 64, (5, 5))],
        "branch3x3dbl": [("_1", 64, (1, 1)), ("_2", 96, (3, 3)), ("_3", 96, (3, 3))],
    }
    return Mixed(width, branches, "mean", pooled)


def _block_17(inner: int) -> Mixed:
    """Return a block for maps of 17 x 17, with convolutions along one axis at a time."""
    wide, high = (1, 7), (7, 1)
    double = [("_2", inner, high), ("_3", inner, wide), ("_4", inner, high), ("_5", 192, wide)]
    branches: Branches = {
        "branch1x1": [("", 192, (1, 1))],
        "branch7x7": [("_1", inner, (1, 1)), ("_2", inner, wide), ("_3", 192, high)],
        "branch7x7dbl": [("_1", inner, (1, 1)), *double],
    }
    return Mixed(768, branches, "mean", 192)


def _block_8(width: int, pool: Pool) -> Mixed:
    """Return a block for maps of 8 x 8, whose last convolutions go along each axis separately."""
    branches: Branches = {
        "branch1x1": [("", 320, (1, 1))],
        "branch3x3": [("_1", 384, (1, 1)), ("_2a", 384, (1, 3)), ("_2b", 384, (3, 1))],
        "branch3x3dbl": [("_1", 448, (1, 1)), ("_2", 384, (3, 3)), ("_3a", 384, (1, 3)), ("_3b", 384, (3, 1))],
    }
    return Mixed(width, branches, pool, 192)


def _halve_35() -> Mixed:
    branches: Branches = {
        "branch3x3": [("", 384, (3, 3))],
        "branch3x3dbl": [("_1", 64, (1, 1)), ("_2", 96, (3, 3)), ("_3", 96, (3, 3))],
    }
    return Mixed(288, branches, "stride")


def _halve_17() -> Mixed:
    branches: Branches = {
        "branch3x3": [("_1", 192, (1, 1)), ("_2", 320, (3, 3))],
        "branch7x7x3": [("_1", 192, (1, 1)), ("_2", 192, (1, 7)), ("_3", 192, (7, 1)), ("_4", 192, (3, 3))],
    }
    return Mixed(768, branches, "stride")


class Inception(nn.Module):
    """Maps images [n, 1 or 3, h, w] in [0, 1] to features [n, 2048]; `fc` exists only so that files load."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, (3, 3), stride=2, same=False)
        self.Conv2d_2a_3x3 = Convolution(32, 32, (3, 3), same=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, (3, 3))
        self.Conv2d_3b_1x1 = Convolution(64, 80, (1, 1))
        self.Conv2d_4a_3x3 = Convolution(80, 192, (3, 3), same=False)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _block_35(192, 32), _block_35(256, 64), _block_35(288, 64)
        self.Mixed_6a = _halve_35()
        self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e = map(_block_17, (128, 160, 160, 192))
        self.Mixed_7a = _halve_17()
        self.Mixed_7b, self.Mixed_7c = _block_8(1280, "mean"), _block_8(2048, "max")
        self.fc = nn.Linear(WIDTH, 1008)

    def forward(self, images: Tensor) -> Tensor:
        x = 2 * resize_to_rgb(images, SIZE, antialias=False) - 1
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(functional.max_pool2d(x, 3, stride=2)))
        x = functional.max_pool2d(x, 3, stride=2)
        for name, module in self.named_children():
            x = module(x) if name.startswith("Mixed") else x
        return x.mean((-2, -1))
