r"""Refiners: networks that draw an observation again, from a coarse one y and a code z of what it lacks (msvae2020).

z enters only by *modulation*, after y has: each layer of the trunk on y is normalised by its own statistics and then
scaled and shifted as z says, so that z can add to what y shows but not stand in its place,

    AdaIN(a, z) = gamma(z) (a - mu(a)) / sigma(a) + beta(z),    sigma(a)^2 = mean over H x W of (a - mu(a))^2 + epsilon

with one gamma and beta per channel (`modulation=channel`, the paper's text) or per channel and pixel (`spatial`, the
authors' code). At a map of 1x1 an activation is its own mean, and y would be erased: no such map is normalised.

A refiner is a function (shape of one observation, width of z) -> module from (y [batch, *shape], z [batch, width]) to
[batch, *shape]. It takes a decoder's place in a staged model, and is chosen as one: `decoder=adain`.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import NetworkFacts, image_side, pixels
from unbraid.registry import Registry
from unbraid.types import Shape

refiner: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("refiner", NetworkFacts)

Modulation = Literal["channel", "spatial"]

EPSILON = 1e-5
STRIDES = {64: (2, 2, 2, 2), 32: (2, 2, 1, 1), 28: (2, 2, 1, 1)}
"""Of the way down, by the side of an image: no map is smaller than 4x4. The way up is the same backwards."""


class AdaIN(nn.Module):
    """Instance statistics out, gamma(z) and beta(z) in; at z = 0 gamma starts as 1 and beta as 0."""

    def __init__(self, width: int, channels: int, side: int, modulation: Modulation = "channel") -> None:
        super().__init__()
        if side < 2:
            raise UsageError("A map of 1x1 is its own mean: normalising it would erase what it shows.")
        self.map = (channels, side, side) if modulation == "spatial" else (channels, 1, 1)
        self.affine = nn.Linear(width, 2 * math.prod(self.map))
        nn.init.zeros_(self.affine.bias)

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        """Activations [batch, channels, side, side] under codes [batch, width]."""
        wide = a if a.dtype == torch.float64 else a.float()  # a variance is a difference of near numbers
        centred = wide - wide.mean((-2, -1), keepdim=True)
        normal = centred * (centred.square().mean((-2, -1), keepdim=True) + EPSILON).rsqrt()
        gamma, beta = (part.unflatten(-1, self.map) for part in self.affine(z).chunk(2, -1))
        return (1 + gamma) * normal + beta


class Modulated(nn.Module):
    """A layer, and what z makes of its output."""

    def __init__(self, layer: nn.Module, modulation: nn.Module) -> None:
        super().__init__()
        self.layer, self.modulation = layer, modulation

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        """Layer, modulation, ReLU."""
        return self.modulation(self.layer(a), z).relu()


class Trunk(nn.Module):
    """Down by convolutions, three of the four modulated, and up by four modulated ones to an image."""

    def __init__(self, shape: Shape, width: int, channels: int, modulation: Modulation) -> None:
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
        """Coarse images [batch, *shape] and codes [batch, width] to raw outputs [batch, *shape]."""
        a = y
        for step in self.down:
            a = step(a, z)
        a = self.middle(a)
        for step in self.up:
            a = step(a, z)
        return self.image(a)


def _conv(first: int, last: int, stride: int, bias: bool = False) -> nn.Module:
    """Halving or size-keeping; without a bias where a normalisation would take it out again."""
    return nn.Conv2d(first, last, 4 if stride == 2 else 3, stride=stride, padding=1, bias=bias)


def _transposed(first: int, last: int, stride: int) -> nn.Module:
    return nn.ConvTranspose2d(first, last, 4 if stride == 2 else 3, stride=stride, padding=1, bias=False)


@refiner("adain", year=2020, reference="msvae2020", trial={"channels": 4})
def adain(shape: Shape, width: int, *, channels: int = 64, modulation: Modulation = "channel") -> nn.Module:
    """Convolutions down and up (64, 128, 256, 512 and back) with AdaIN by z at three and four of them."""
    return Trunk(shape, width, channels, modulation)


class Film(nn.Module):
    """Units scaled and shifted by z (perez2018): a vector has no map to take statistics of."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.affine = nn.Linear(width, 2 * units)
        nn.init.zeros_(self.affine.bias)

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        """(1 + gamma(z)) a + beta(z)."""
        gamma, beta = self.affine(z).chunk(2, -1)
        return (1 + gamma) * a + beta


class Perceptron(nn.Module):
    """Dense layers on y, each modulated, and a plain one to the observation."""

    def __init__(self, shape: Shape, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        sizes = [pixels(shape), *hidden]
        self.hidden = nn.ModuleList(Modulated(nn.Linear(*ends), Film(width, ends[1])) for ends in pairwise(sizes))
        self.last = nn.Sequential(nn.Linear(sizes[-1], pixels(shape)), nn.Unflatten(1, shape))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Coarse observations [batch, *shape] and codes [batch, width] to raw outputs [batch, *shape]."""
        a = y.flatten(1)
        for step in self.hidden:
            a = step(a, z)
        return self.last(a)


@refiner("mlp", year=2018, reference="perez2018")
def mlp(shape: Shape, width: int, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths on y, each scaled and shifted by z, for vectors and images of any size."""
    if not hidden:
        raise UsageError("Refiner 'mlp' needs a hidden layer: z enters nowhere else.")
    return Perceptron(shape, width, hidden)


def choose_stage_networks(shape: Shape) -> dict[str, str]:
    """Names of the residual encoder and the refiner that take these observations."""
    small = len(shape) == 3 and shape[1] == shape[2] and shape[1] in STRIDES
    return {"encoder": "conv-residual", "decoder": "adain"} if small else {"encoder": "mlp", "decoder": "mlp"}
