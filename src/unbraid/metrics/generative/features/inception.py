"""Inception v3 as the Frechet inception distance uses it (heusel2017): 2,048 features of the last average pooling.

The distance is defined by one set of weights, TensorFlow's of 2015-12-05; this module has the parameter names of their
usual PyTorch conversion (`pt_inception-2015-12-05-….pth`), which the user must bring. That network differs from
Szegedy et al. (2016) in its pooling branches: averages leave the padding out, and the last block takes the maximum.
Pictures are resized bilinearly to 299 x 299, without antialiasing, and scaled to [-1, 1], as is usual with that file.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError
from unbraid.metrics.generative.features.base import (
    FeatureNetwork,
    as_photographs,
    batch_on,
    feature_network,
    refuse_other_shapes,
)
from unbraid.metrics.needs import INCEPTION_VARIABLE, NO_WEIGHTS

NAME = "inception"
WIDTH = 2048
SIZE = 299

Pool = Literal["mean", "max", "stride"]
Layer = tuple[str, int, tuple[int, int]]
"""Name after the branch's, channels, kernel."""


@feature_network(NAME, reference="heusel2017", width=WIDTH)
def inception(dataset: FactorDataset, rows: Tensor, seed: int, *, weights: str | None = None) -> FeatureNetwork:
    """Inception v3 of the FID; `weights` is the file that holds it, or the environment's UNBRAID_INCEPTION."""
    refuse_other_shapes(NAME, dataset)
    path = weights_file(weights)
    module = load(path).to(dataset.device)
    return FeatureNetwork(NAME, module, WIDTH, batch_on(dataset.device, cpu=4, gpu=128), {"weights": path.name})


def weights_file(weights: str | None) -> Path:
    """The file that the setting or the environment names."""
    given = weights or os.environ.get(INCEPTION_VARIABLE)
    if not given:
        raise UsageError(NO_WEIGHTS)
    path = Path(given).expanduser()
    if not path.is_file():
        raise UsageError(f"There is no file {path} with Inception weights.")
    return path


def load(path: Path) -> "Inception":
    """The network with the weights of a file, in evaluation mode; a file that does not fit names what is wrong."""
    tensors, network = _read(path), Inception()
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if not _counter(name)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not _counter(name)}
    wrong = [name for name in (*expected, *found) if expected.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        was, wanted = found.get(name, "nothing"), expected.get(name, "nothing")
        raise DataError(f"{path} does not hold the Inception v3 of the FID: at {name} it has {was}, not {wanted}.")
    network.load_state_dict({name: tensors[name].float() for name in expected}, strict=False)
    return network.eval().requires_grad_(False)


def _counter(name: str) -> bool:
    """Numbers of training batches, which some files leave out and nothing here uses."""
    return name.endswith("num_batches_tracked")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise DataError(f"{path} cannot be read as weights: it is damaged, or holds more than tensors.") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"{path} does not hold named tensors.")
    return tensors


class Convolution(nn.Module):
    """Convolution without bias, normalisation, ReLU."""

    def __init__(self, width: int, channels: int, kernel: tuple[int, int], stride: int = 1, same: bool = True) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)
        self.conv = nn.Conv2d(width, channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Branches of convolutions and one of pooling, side by side.

    A branch is a chain of layers; layers whose names end in a and b both take the one before and stand side by side.
    With the pool `stride` the last layer of each branch and the pooling halve the picture.
    """

    def __init__(self, width: int, branches: dict[str, Sequence[Layer]], pool: Pool, pooled: int = 0) -> None:
        super().__init__()
        self.branches = branches
        self.pool = pool
        for branch, layers in branches.items():
            before = width
            for position, (name, channels, kernel) in enumerate(layers):
                halves = pool == "stride" and position == len(layers) - 1
                own = Convolution(before, channels, kernel, stride=2 if halves else 1, same=not halves)
                self.add_module(branch + name, own)
                before = before if name.endswith("a") else channels
        if pooled:
            self.branch_pool = Convolution(width, pooled, (1, 1))

    def forward(self, x: Tensor) -> Tensor:
        made: list[Tensor] = []
        for branch, layers in self.branches.items():
            y = x
            for name, _, _ in layers:
                layer = self.get_submodule(branch + name)
                if name.endswith("a"):
                    made.append(layer(y))
                else:
                    y = layer(y)
            made.append(y)
        return torch.cat([*made, self._pooled(x)], dim=1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.pool == "stride":
            return functional.max_pool2d(x, 3, stride=2)
        if self.pool == "max":
            return self.branch_pool(functional.max_pool2d(x, 3, stride=1, padding=1))
        return self.branch_pool(functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False))


def _block_35(width: int, pooled: int) -> Mixed:
    """Maps of 35 x 35."""
    branches: dict[str, Sequence[Layer]] = {
        "branch1x1": [("", 64, (1, 1))],
        "branch5x5": [("_1", 48, (1, 1)), ("_2", 64, (5, 5))],
        "branch3x3dbl": [("_1", 64, (1, 1)), ("_2", 96, (3, 3)), ("_3", 96, (3, 3))],
    }
    return Mixed(width, branches, "mean", pooled)


def _block_17(inner: int) -> Mixed:
    """Maps of 17 x 17, convolved along one side at a time."""
    wide, high = (1, 7), (7, 1)
    double = [("_2", inner, high), ("_3", inner, wide), ("_4", inner, high), ("_5", 192, wide)]
    branches: dict[str, Sequence[Layer]] = {
        "branch1x1": [("", 192, (1, 1))],
        "branch7x7": [("_1", inner, (1, 1)), ("_2", inner, wide), ("_3", 192, high)],
        "branch7x7dbl": [("_1", inner, (1, 1)), *double],
    }
    return Mixed(768, branches, "mean", 192)


def _block_8(width: int, pool: Pool) -> Mixed:
    """Maps of 8 x 8, the last convolutions along both sides apart."""
    branches: dict[str, Sequence[Layer]] = {
        "branch1x1": [("", 320, (1, 1))],
        "branch3x3": [("_1", 384, (1, 1)), ("_2a", 384, (1, 3)), ("_2b", 384, (3, 1))],
        "branch3x3dbl": [("_1", 448, (1, 1)), ("_2", 384, (3, 3)), ("_3a", 384, (1, 3)), ("_3b", 384, (3, 1))],
    }
    return Mixed(width, branches, pool, 192)


def _halving_35() -> Mixed:
    branches: dict[str, Sequence[Layer]] = {
        "branch3x3": [("", 384, (3, 3))],
        "branch3x3dbl": [("_1", 64, (1, 1)), ("_2", 96, (3, 3)), ("_3", 96, (3, 3))],
    }
    return Mixed(288, branches, "stride")


def _halving_17() -> Mixed:
    branches: dict[str, Sequence[Layer]] = {
        "branch3x3": [("_1", 192, (1, 1)), ("_2", 320, (3, 3))],
        "branch7x7x3": [("_1", 192, (1, 1)), ("_2", 192, (1, 7)), ("_3", 192, (7, 1)), ("_4", 192, (3, 3))],
    }
    return Mixed(768, branches, "stride")


class Inception(nn.Module):
    """Pictures in [0, 1] of any size to 2,048 features; the classifier `fc` is there for its name only."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, (3, 3), stride=2, same=False)
        self.Conv2d_2a_3x3 = Convolution(32, 32, (3, 3), same=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, (3, 3))
        self.Conv2d_3b_1x1 = Convolution(64, 80, (1, 1))
        self.Conv2d_4a_3x3 = Convolution(80, 192, (3, 3), same=False)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _block_35(192, 32), _block_35(256, 64), _block_35(288, 64)
        self.Mixed_6a = _halving_35()
        self.Mixed_6b, self.Mixed_6c, self.Mixed_6d, self.Mixed_6e = map(_block_17, (128, 160, 160, 192))
        self.Mixed_7a = _halving_17()
        self.Mixed_7b, self.Mixed_7c = _block_8(1280, "mean"), _block_8(2048, "max")
        self.fc = nn.Linear(WIDTH, 1008)

    def forward(self, images: Tensor) -> Tensor:
        """Features [n, 2048] of images [n, 1 or 3, h, w]."""
        x = 2 * as_photographs(images, SIZE, antialias=False) - 1
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(functional.max_pool2d(x, 3, stride=2)))
        x = functional.max_pool2d(x, 3, stride=2)
        mixed = [module for name, module in self.named_children() if name.startswith("Mixed")]
        for module in mixed:
            x = module(x)
        return x.mean((-2, -1))
