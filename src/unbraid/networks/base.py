"""Registries of encoders and decoders, and the pieces they are built from.

An encoder is a function (shape of one observation, outputs) -> module from [batch, *shape] to [batch, output width]. A
decoder is a function (width of the code, shape) -> module from [batch, width] to [batch, *shape]. A name in both
registries is a network: `network=NAME` chooses both sides.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.registry import Facts, Registry
from unbraid.types import Shape

Outputs = Mapping[str, int]
"""Names and widths of an encoder's outputs, in order (see `Space.outputs`)."""


@dataclass(frozen=True)
class NetworkFacts(Facts):
    """Facts of a network; `trial` holds settings that make it small, for tests."""

    trial: Mapping[str, Any] = field(default_factory=dict)


encoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("encoder", NetworkFacts)
decoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("decoder", NetworkFacts)


def total(outputs: Outputs) -> int:
    """Return the width of an encoder's flat output."""
    return sum(outputs.values())


def dense(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Build linear layers with an activation between them and none after the last."""
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(pairwise(sizes)):
        layers += [activation()] if i else []
        layers.append(nn.Linear(width_in, width_out))
    return nn.Sequential(*layers)


def image_side(name: str, shape: Shape, *sides: int) -> tuple[int, int]:
    """Return the channels and the side of a square image; raise a `UsageError` if its side is none of `sides`."""
    if len(shape) == 3 and shape[1] == shape[2] and shape[1] in sides:
        return shape[0], shape[1]
    wanted = " or ".join(f"{side}x{side}" for side in sides)
    raise UsageError(
        f"Network '{name}' takes {wanted} images, not observations of shape {tuple(shape)}; "
        "choose another network (unbraid list networks), or resize your own images (data.size=…)."
    )


SMALLEST_SIDE = 8
"""Smaller images have no room for a convolution that halves them."""

LARGEST_MAP_SIDE = 7
"""Convolutional networks halve an image until its shorter side is at most this: 64 to 4, 96 to 6, 28 to 7."""


class ImageMaps(NamedTuple):
    """An image, and the maps to which a network's convolutions reduce it: `levels` halvings, rounded down.

    A decoder starts from `start`, the smallest map that reaches the image by as many doublings.
    """

    channels: int
    image: tuple[int, int]
    levels: int

    @property
    def end(self) -> tuple[int, int]:
        """Height and width of an encoder's last map."""
        return self.image[0] >> self.levels, self.image[1] >> self.levels

    @property
    def start(self) -> tuple[int, int]:
        """Height and width of a decoder's first map."""
        return -(-self.image[0] >> self.levels), -(-self.image[1] >> self.levels)

    def spread(self, widths: Sequence[int]) -> list[int]:
        """Return a width for each halving: a paper's, without the last ones or with the last one repeated."""
        return [*widths[: self.levels], *[widths[-1]] * (self.levels - len(widths))]

    def crop(self) -> list[nn.Module]:
        """Return a layer that cuts a decoder's output to the image, unless it fits."""
        fits = all(side << self.levels == wanted for side, wanted in zip(self.start, self.image, strict=True))
        return [] if fits else [Crop(*self.image)]


class Crop(nn.Module):
    """The middle of an image, of a given size."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        top, left = (x.shape[-2] - self.height) // 2, (x.shape[-1] - self.width) // 2
        return x[..., top : top + self.height, left : left + self.width]


def halve_image(name: str, shape: Shape, levels: int | None = None) -> ImageMaps:
    """Return the maps of an image; raise a `UsageError` if a side is below 8. `levels` fixes the number of halvings."""
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        raise UsageError(
            f"Network '{name}' takes images of at least {SMALLEST_SIDE}x{SMALLEST_SIDE} pixels, not observations of "
            f"shape {tuple(shape)}; choose another network, such as mlp, or resize your own images (data.size=…)."
        )
    channels, height, width = shape
    needed = 1
    while min(height, width) >> needed > LARGEST_MAP_SIDE:
        needed += 1
    return ImageMaps(channels, (height, width), needed if levels is None else levels)


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, frozen ones included."""
    return sum(parameter.numel() for parameter in module.parameters())


def pixels(shape: Shape) -> int:
    """Return the number of values in one observation."""
    return math.prod(shape)
