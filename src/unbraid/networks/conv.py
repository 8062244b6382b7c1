"""Convolutional networks: those of papers for 64x64 images, and small ones for 28x28 and 32x32."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, image_side, total
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
    channels, _ = image_side("conv-locatello", shape, 64)
    body = [*halve([channels, width, width]), *halve([width, 2 * width, 2 * width], kernel=2, padding=0)]
    return nn.Sequential(*body, nn.Flatten(), *dense([2 * width * 4 * 4, hidden, total(outputs)], nn.ReLU))


def wide_locatello_decoder(code: int, shape: Shape, *, width: int, hidden: int) -> nn.Module:
    """Build conv-locatello's decoder with `width` channels in the last but one convolution."""
    channels, _ = image_side("conv-locatello", shape, 64)
    start = [*dense([code, hidden, 2 * width * 4 * 4], nn.ReLU), nn.ReLU(), nn.Unflatten(1, (2 * width, 4, 4))]
    return nn.Sequential(*start, *double([2 * width, 2 * width, width, width, channels]))


@encoder("conv-burgess", reference="burgess2018")
def burgess_encoder(shape: Shape, outputs: Outputs, *, hidden: int = 256) -> nn.Module:
    """Four convolutions 32k4 stride 2, then 256, 256 (appendix A.1)."""
    channels, _ = image_side("conv-burgess", shape, 64)
    tail = dense([32 * 4 * 4, hidden, hidden, total(outputs)], nn.ReLU)
    return nn.Sequential(*halve([channels, 32, 32, 32, 32]), nn.Flatten(), *tail)


@decoder("conv-burgess", reference="burgess2018")
def burgess_decoder(code: int, shape: Shape, *, hidden: int = 256) -> nn.Module:
    """The transpose of the encoder (appendix A.1)."""
    channels, _ = image_side("conv-burgess", shape, 64)
    start = [*dense([code, hidden, hidden, 32 * 4 * 4], nn.ReLU), nn.ReLU(), nn.Unflatten(1, (32, 4, 4))]
    return nn.Sequential(*start, *double([32, 32, 32, 32, channels]))


@encoder("conv-daunhawer", reference="daunhawer2019")
def daunhawer_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """32, 32, 64, 64, each k4 stride 2, then 256k4 (table 1)."""
    channels, _ = image_side("conv-daunhawer", shape, 64)
    tail = [nn.Conv2d(64, 256, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, total(outputs))]
    return nn.Sequential(*halve([channels, 32, 32, 64, 64]), *tail)


@decoder("conv-daunhawer", reference="daunhawer2019")
def daunhawer_decoder(code: int, shape: Shape) -> nn.Module:
    """256, then 64k4, 64k4, 32k4, 32k4 and the image; the last layer gives logits (table 2)."""
    channels, _ = image_side("conv-daunhawer", shape, 64)
    start = [nn.Linear(code, 256), nn.ReLU(), nn.Unflatten(1, (256, 1, 1)), nn.ConvTranspose2d(256, 64, 4), nn.ReLU()]
    return nn.Sequential(*start, *double([64, 64, 32, 32, channels]))


@encoder("conv-chen", reference="chen2018")
def chen_encoder(shape: Shape, outputs: Outputs, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """Convolutions with BatchNorm (appendix H.1: 3D faces and chairs; CelebA has widths 64, 128, 128, 256, 512)."""
    channels, _ = image_side("conv-chen", shape, 64)
    return to_single_pixel(channels, widths, total(outputs), nn.ReLU)


@decoder("conv-chen", reference="chen2018")
def chen_decoder(code: int, shape: Shape, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """The transpose of the encoder, with BatchNorm (appendix H.1)."""
    channels, _ = image_side("conv-chen", shape, 64)
    return from_single_pixel(code, widths, channels, nn.ReLU)


@encoder("conv-small")
def small_encoder(shape: Shape, outputs: Outputs, *, width: int = 32, hidden: int = 256) -> nn.Module:
    """For 28x28 and 32x32 images: two halving convolutions, then 256."""
    channels, side = image_side("conv-small", shape, 28, 32)
    tail = dense([2 * width * (side // 4) ** 2, hidden, total(outputs)], nn.ReLU)
    return nn.Sequential(*halve([channels, width, 2 * width]), nn.Flatten(), *tail)


@decoder("conv-small")
def small_decoder(code: int, shape: Shape, *, width: int = 32, hidden: int = 256) -> nn.Module:
    """For 28x28 and 32x32 images: 256, a quarter-size map, two doubling convolutions."""
    channels, side = image_side("conv-small", shape, 28, 32)
    small = (2 * width, side // 4, side // 4)
    start = [*dense([code, hidden, 2 * width * (side // 4) ** 2], nn.ReLU), nn.ReLU(), nn.Unflatten(1, small)]
    return nn.Sequential(*start, *double([2 * width, width, channels]))


@encoder("conv-residual", reference="msvae2020")
def residual_encoder(shape: Shape, outputs: Outputs, *, channels: int = 64) -> nn.Module:
    """64k5, 128k5, 256k5, 512k5, each stride 2, ReLU, and one linear layer; sees x - y of a second stage."""
    colours, side = image_side("conv-residual", shape, 28, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise([colours, *(channels * 2**level for level in range(4))]):
        layers += [nn.Conv2d(before, after, 5, stride=2, padding=2), nn.ReLU()]
        side = (side + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * channels * side * side, total(outputs)))


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


def to_single_pixel(channels: int, widths: Widths, outputs: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Build convolutions with BatchNorm from a 64x64 image to 1x1, then to [batch, outputs]."""
    # Initial weights depend on the order of construction: the top comes first.
    top = [nn.Conv2d(widths[3], widths[4], 4), nn.BatchNorm2d(widths[4]), activation()]
    body = halve([channels, *widths[:4]], normalised=True, activation=activation)
    return nn.Sequential(*body, *top, nn.Conv2d(widths[4], outputs, 1), nn.Flatten())


def from_single_pixel(code: int, widths: Widths, channels: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Build the transpose of `to_single_pixel`."""
    *lower, top, wide = widths
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, wide, 1), nn.BatchNorm2d(wide), activation()]
    start += [nn.ConvTranspose2d(wide, top, 4), nn.BatchNorm2d(top), activation()]
    return nn.Sequential(*start, *double([top, *reversed(lower), channels], normalised=True, activation=activation))
