"""Convolutional networks of papers, published for 64x64 images, and a small one.

Larger or smaller images have more or fewer halvings (`unbraid.networks.base.ImageMaps`); at 64x64 the networks are
those of the papers.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from unbraid.networks.base import ImageMaps, Outputs, decoder, dense, encoder, halve_image, total
from unbraid.types import Shape

Widths = tuple[int, int, int, int, int]


@encoder("conv-locatello", reference="locatello2019")
def locatello_encoder(shape: Shape, outputs: Outputs, *, hidden: int = 256) -> nn.Module:
    """32k4, 32k4, 64k2, 64k2, each stride 2, then 256 (table 1)."""
    return wide_locatello_encoder(shape, outputs, width=32, hidden=hidden)


@decoder("conv-locatello", reference="locatello2019")
def locatello_decoder(code: int, shape: Shape, *, hidden: int = 256) -> nn.Module:
    """256, 4x4x64, then 64k4, 32k4, 32k4 and the image, each stride 2 (table 1)."""
    return wide_locatello_decoder(code, shape, width=32, hidden=hidden)


def wide_locatello_encoder(shape: Shape, outputs: Outputs, *, width: int, hidden: int) -> nn.Module:
    """Build conv-locatello's encoder with `width` channels in the first convolution."""
    maps = halve_image("conv-locatello", shape)
    widths = [maps.channels, *maps.spread([width, width, 2 * width, 2 * width])]
    body = [*halve(widths[:3]), *halve(widths[2:], kernel=2, padding=0)]
    flat = widths[-1] * math.prod(maps.end)
    return nn.Sequential(*body, nn.Flatten(), *dense([flat, hidden, total(outputs)], nn.ReLU))


def wide_locatello_decoder(code: int, shape: Shape, *, width: int, hidden: int) -> nn.Module:
    """Build conv-locatello's decoder with `width` channels in the last but one convolution."""
    maps = halve_image("conv-locatello", shape)
    return _grow(code, [hidden], maps.spread([width, width, 2 * width, 2 * width]), maps)


@encoder("conv-burgess", reference="burgess2018")
def burgess_encoder(shape: Shape, outputs: Outputs, *, hidden: int = 256) -> nn.Module:
    """Four convolutions 32k4 stride 2, then 256, 256 (appendix A.1)."""
    maps = halve_image("conv-burgess", shape)
    tail = dense([32 * math.prod(maps.end), hidden, hidden, total(outputs)], nn.ReLU)
    return nn.Sequential(*halve([maps.channels, *maps.spread([32])]), nn.Flatten(), *tail)


@decoder("conv-burgess", reference="burgess2018")
def burgess_decoder(code: int, shape: Shape, *, hidden: int = 256) -> nn.Module:
    """The transpose of the encoder (appendix A.1)."""
    maps = halve_image("conv-burgess", shape)
    return _grow(code, [hidden, hidden], maps.spread([32]), maps)


@encoder("conv-daunhawer", reference="daunhawer2019")
def daunhawer_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """32, 32, 64, 64, each k4 stride 2, then 256k4 (table 1)."""
    maps = halve_image("conv-daunhawer", shape)
    widths = maps.spread([32, 32, 64, 64])
    tail = [nn.Conv2d(widths[-1], 256, maps.end), nn.ReLU(), nn.Flatten(), nn.Linear(256, total(outputs))]
    return nn.Sequential(*halve([maps.channels, *widths]), *tail)


@decoder("conv-daunhawer", reference="daunhawer2019")
def daunhawer_decoder(code: int, shape: Shape) -> nn.Module:
    """256, then 64k4, 64k4, 32k4, 32k4 and the image; the last layer gives logits (table 2)."""
    maps = halve_image("conv-daunhawer", shape)
    widths = [*reversed(maps.spread([32, 32, 64, 64]))]
    start = [nn.Linear(code, 256), nn.ReLU(), nn.Unflatten(1, (256, 1, 1))]
    start += [nn.ConvTranspose2d(256, widths[0], maps.start), nn.ReLU()]
    return nn.Sequential(*start, *double([*widths, maps.channels]), *maps.crop())


@encoder("conv-chen", reference="chen2018")
def chen_encoder(shape: Shape, outputs: Outputs, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """Convolutions with BatchNorm (appendix H.1: 3D faces and chairs; CelebA has widths 64, 128, 128, 256, 512)."""
    return to_single_pixel(halve_image("conv-chen", shape), widths, total(outputs), nn.ReLU)


@decoder("conv-chen", reference="chen2018")
def chen_decoder(code: int, shape: Shape, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """The transpose of the encoder, with BatchNorm (appendix H.1)."""
    return from_single_pixel(code, widths, halve_image("conv-chen", shape), nn.ReLU)


@encoder("conv-small")
def small_encoder(shape: Shape, outputs: Outputs, *, width: int = 32, hidden: int = 256) -> nn.Module:
    """For small images, such as 28x28 and 32x32: two halving convolutions, then 256."""
    maps = halve_image("conv-small", shape, levels=2)
    tail = dense([2 * width * math.prod(maps.end), hidden, total(outputs)], nn.ReLU)
    return nn.Sequential(*halve([maps.channels, width, 2 * width]), nn.Flatten(), *tail)


@decoder("conv-small")
def small_decoder(code: int, shape: Shape, *, width: int = 32, hidden: int = 256) -> nn.Module:
    """For small images, such as 28x28 and 32x32: 256, a quarter-size map, two doubling convolutions."""
    return _grow(code, [hidden], [width, 2 * width], halve_image("conv-small", shape, levels=2))


@encoder("conv-residual", reference="msvae2020")
def residual_encoder(shape: Shape, outputs: Outputs, *, channels: int = 64) -> nn.Module:
    """64k5, 128k5, 256k5, 512k5, each stride 2, ReLU, and one linear layer; sees x - y of a second stage."""
    maps = halve_image("conv-residual", shape, levels=4)
    layers: list[nn.Module] = []
    for before, after in pairwise([maps.channels, *(channels * 2**level for level in range(4))]):
        layers += [nn.Conv2d(before, after, 5, stride=2, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * channels * math.prod(maps.start), total(outputs)))


def halve(
    channels: Sequence[int],
    kernel: int = 4,
    padding: int = 1,
    normalised: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Build convolutions that halve the image, each followed by BatchNorm, if asked for, and an activation."""
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers.append(nn.Conv2d(before, after, kernel, stride=2, padding=padding))
        layers += [nn.BatchNorm2d(after)] if normalised else []
        layers.append(activation())
    return layers


def double(
    channels: Sequence[int], normalised: bool = False, activation: Callable[[], nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """Build transposed convolutions that double the image, with BatchNorm and an activation between them."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(pairwise(channels)):
        layers.append(nn.ConvTranspose2d(before, after, 4, stride=2, padding=1))
        if i < len(channels) - 2:
            layers += [nn.BatchNorm2d(after)] if normalised else []
            layers.append(activation())
    return layers


def to_single_pixel(
    maps: ImageMaps, widths: Widths, outputs: int, activation: Callable[[], nn.Module]
) -> nn.Sequential:
    """Build convolutions with BatchNorm from an image to 1x1, then to [batch, outputs]."""
    # Initial weights depend on the order of construction: the top comes first.
    lower, wide = maps.spread(widths[:4]), widths[4]
    top = [nn.Conv2d(lower[-1], wide, maps.end), nn.BatchNorm2d(wide), activation()]
    body = halve([maps.channels, *lower], normalised=True, activation=activation)
    return nn.Sequential(*body, *top, nn.Conv2d(wide, outputs, 1), nn.Flatten())


def from_single_pixel(code: int, widths: Widths, maps: ImageMaps, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Build the transpose of `to_single_pixel`."""
    wide, (top, *lower) = widths[4], reversed(maps.spread(widths[:4]))
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, wide, 1), nn.BatchNorm2d(wide), activation()]
    start += [nn.ConvTranspose2d(wide, top, maps.start), nn.BatchNorm2d(top), activation()]
    body = double([top, *lower, maps.channels], normalised=True, activation=activation)
    return nn.Sequential(*start, *body, *maps.crop())


def _grow(code: int, hidden: Sequence[int], widths: Sequence[int], maps: ImageMaps) -> nn.Sequential:
    """Build linear layers to a map of the last width, then the transpose of an encoder's convolutions."""
    first = (widths[-1], *maps.start)
    start = [*dense([code, *hidden, math.prod(first)], nn.ReLU), nn.ReLU(), nn.Unflatten(1, first)]
    return nn.Sequential(*start, *double([*reversed(widths), maps.channels]), *maps.crop())
