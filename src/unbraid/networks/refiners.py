r"""Refiners: networks from a coarse observation y and a code z of what it lacks to the observation (msvae2020).

z only *modulates* the layers on y: each of them is normalised by its own statistics, then scaled and shifted by numbers
that depend on z. So z can add to y, but cannot replace it,

    AdaIN(a, z) = gamma(z) (a - mu(a)) / sigma(a) + beta(z),    sigma(a)^2 = mean over H x W of (a - mu(a))^2 + epsilon

with one gamma and beta per channel (`modulation=channel`, the paper's text) or per channel and pixel (`spatial`, the
authors' code). Maps of 1x1 are not normalised: an activation there is its own mean, and y would be erased.

A refiner is a function (shape of one observation, width of z) -> module from (y [batch, *shape], z [batch, width]) to
[batch, *shape]. A staged model has one in place of a decoder, chosen by `decoder=adain`.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import NetworkFacts, image_side, pixels
from unbraid.networks.conv_as_matmul import compute_type
from unbraid.networks.fused_norm import FusableNorm
from unbraid.registry import Registry
from unbraid.types import Shape

refiner: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("refiner", NetworkFacts)

Modulation = Literal["channel", "spatial"]

EPSILON = 1e-5
STRIDES = {64: (2, 2, 2, 2), 32: (2, 2, 1, 1), 28: (2, 2, 1, 1)}
"""Strides on the way down by the side of an image; no map is smaller than 4x4. The way up reverses them."""


class AdaIN(FusableNorm):
    """Adaptive instance normalisation; before training, gamma = 1 and beta = 0 at z = 0."""

    def __init__(self, width: int, channels: int, side: int, modulation: Modulation = "channel") -> None:
        super().__init__()
        if side < 2:
            raise UsageError("AdaIN cannot normalise a map of 1x1: it is its own mean, and would be erased.")
        self.map = (channels, side, side) if modulation == "spatial" else (channels, 1, 1)
        self.affine = nn.Linear(width, 2 * math.prod(self.map))
        nn.init.zeros_(self.affine.bias)

    def forward(self, a: Tensor, z: Tensor, relu: bool = False) -> Tensor:
        """Return activations a [batch, channels, side, side], modulated by codes z [batch, width]; `relu` clips them.

        The kernels return the type that the next convolution would cast to, torch's operations return float32.
        """
        if self.map[1:] == (1, 1) and a.shape[0] == z.shape[0] and self.runs_kernels(a):
            gamma, beta = self.affine(z).float().chunk(2, -1)
            return torch.ops.unbraid.normalise(a, 1 + gamma, beta, EPSILON, relu, compute_type(a))[0]
        wide = a if a.dtype == torch.float64 else a.float()  # a variance is a difference of near numbers
        centred = wide - wide.mean((-2, -1), keepdim=True)
        normal = centred * (centred.square().mean((-2, -1), keepdim=True) + EPSILON).rsqrt()
        gamma, beta = (part.unflatten(-1, self.map) for part in self.affine(z).chunk(2, -1))
        out = (1 + gamma) * normal + beta
        return out.relu() if relu else out


class Modulated(nn.Module):
    """A layer whose output z modulates, and a ReLU."""

    def __init__(self, layer: nn.Module, modulation: nn.Module) -> None:
        super().__init__()
        self.layer, self.modulation = layer, modulation

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        if isinstance(self.modulation, AdaIN):
            return self.modulation(self.layer(a), z, relu=True)
        return self.modulation(self.layer(a), z).relu()


@refiner("adain", reference="msvae2020", trial={"channels": 4})
class AdaINRefiner(nn.Module):
    """Convolutions down and up (64, 128, 256, 512 and back) with AdaIN by z at three and four of them."""

    def __init__(self, shape: Shape, width: int, *, channels: int = 64, modulation: Modulation = "channel") -> None:
        super().__init__()
        colours, side = image_side("adain", shape, 28, 32, 64)
        strides, widths = STRIDES[side], [channels * 2**level for level in range(4)]
        sides = [side]
        for stride in strides:
            sides.append(sides[-1] // stride)
        down = [_conv(*ends, stride) for ends, stride in zip(pairwise([colours, *widths]), strides, strict=True)]
        self.down = nn.ModuleList(
            Modulated(layer, AdaIN(width, widths[level], sides[level + 1], modulation))
            for level, layer in enumerate(down[:3])
        )
        self.middle = nn.Sequential(_conv(widths[2], widths[3], strides[3], bias=True), nn.ReLU())
        back = [*reversed(widths), channels]
        self.up = nn.ModuleList(
            Modulated(_transposed(*ends, strides[3 - level]), AdaIN(width, ends[1], sides[3 - level], modulation))
            for level, ends in enumerate(pairwise(back))
        )
        self.image = nn.Conv2d(channels, colours, 3, padding=1)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Return raw outputs [batch, *shape] for coarse images y [batch, *shape] and codes z [batch, width]."""
        a = y
        for step in self.down:
            a = step(a, z)
        a = self.middle(a)
        for step in self.up:
            a = step(a, z)
        return self.image(a)


def _conv(first: int, last: int, stride: int, bias: bool = False) -> nn.Module:
    """Build a convolution that halves or keeps the size; a normalisation after it would remove a bias."""
    return nn.Conv2d(first, last, 4 if stride == 2 else 3, stride=stride, padding=1, bias=bias)


def _transposed(first: int, last: int, stride: int) -> nn.Module:
    return nn.ConvTranspose2d(first, last, 4 if stride == 2 else 3, stride=stride, padding=1, bias=False)


class FiLM(nn.Module):
    """Units scaled and shifted by z (perez2018), without the statistics of AdaIN."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.affine = nn.Linear(width, 2 * units)
        nn.init.zeros_(self.affine.bias)

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        """Return (1 + gamma(z)) a + beta(z)."""
        gamma, beta = self.affine(z).chunk(2, -1)
        return (1 + gamma) * a + beta


@refiner("mlp", reference="perez2018")
class FiLMRefiner(nn.Module):
    """Hidden layers of the given widths on y, each scaled and shifted by z, for vectors and images of any size."""

    def __init__(self, shape: Shape, width: int, *, hidden: tuple[int, ...] = (256, 256)) -> None:
        super().__init__()
        if not hidden:
            raise UsageError("Refiner 'mlp' needs a hidden layer, because z enters nowhere else.")
        sizes = [pixels(shape), *hidden]
        self.hidden = nn.ModuleList(Modulated(nn.Linear(*ends), FiLM(width, ends[1])) for ends in pairwise(sizes))
        self.last = nn.Sequential(nn.Linear(sizes[-1], pixels(shape)), nn.Unflatten(1, shape))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        a = y.flatten(1)
        for step in self.hidden:
            a = step(a, z)
        return self.last(a)


def choose_stage_networks(shape: Shape) -> dict[str, str]:
    """Return the names of the default residual encoder and refiner."""
    small = len(shape) == 3 and shape[1] == shape[2] and shape[1] in STRIDES
    return {"encoder": "conv-residual", "decoder": "adain"} if small else {"encoder": "mlp", "decoder": "mlp"}
