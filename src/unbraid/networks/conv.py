"""Convolutional networks of the papers, 64x64, and small ones for 28x28 and 32x32."""

from collections.abc import Callable, Sequence

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, image_side, total
from unbraid.types import Shape


@encoder("conv-locatello", year=2019, reference="locatello2019")
def locatello_encoder(shape: Shape, outputs: Outputs, *, hidden: int = 256) -> nn.Module:
    """32k4, 32k4, 64k2, 64k2, each stride 2, then 256 (table 1)."""
    channels, _ = image_side("conv-locatello", shape, 64)
    return nn.Sequential(
        *halve([channels, 32, 32]),
        *halve([32, 64, 64], kernel=2, padding=0),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, hidden),
        nn.ReLU(),
        nn.Linear(hidden, total(outputs)),
    )


@decoder("conv-locatello", year=2019, reference="locatello2019")
def locatello_decoder(code: int, shape: Shape, *, hidden: int = 256) -> nn.Module:
    """256, 4x4x64, then 64k4, 32k4, 32k4 and the image, each stride 2 (table 1)."""
    channels, _ = image_side("conv-locatello", shape, 64)
    start = [*dense([code, hidden, 64 * 4 * 4], nn.ReLU), nn.ReLU(), nn.Unflatten(1, (64, 4, 4))]
    return nn.Sequential(*start, *double([64, 64, 32, 32, channels]))


@encoder("conv-burgess", year=2018, reference="burgess2018")
def burgess_encoder(shape: Shape, outputs: Outputs, *, hidden: int = 256) -> nn.Module:
    """Four convolutions 32k4 stride 2, then 256, 256 (appendix A.1)."""
    channels, _ = image_side("conv-burgess", shape, 64)
    tail = dense([32 * 4 * 4, hidden, hidden, total(outputs)], nn.ReLU)
    return nn.Sequential(*halve([channels, 32, 32, 32, 32]), nn.Flatten(), *tail)


@decoder("conv-burgess", year=2018, reference="burgess2018")
def burgess_decoder(code: int, shape: Shape, *, hidden: int = 256) -> nn.Module:
    """The transpose of the encoder (appendix A.1)."""
    channels, _ = image_side("conv-burgess", shape, 64)
    start = [*dense([code, hidden, hidden, 32 * 4 * 4], nn.ReLU), nn.ReLU(), nn.Unflatten(1, (32, 4, 4))]
    return nn.Sequential(*start, *double([32, 32, 32, 32, channels]))


@encoder("conv-daunhawer", year=2019, reference="daunhawer2019")
def daunhawer_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """32, 32, 64, 64, each k4 stride 2, then 256k4 (table 1)."""
    channels, _ = image_side("conv-daunhawer", shape, 64)
    tail = [nn.Conv2d(64, 256, 4), nn.ReLU(), nn.Flatten(), nn.Linear(256, total(outputs))]
    return nn.Sequential(*halve([channels, 32, 32, 64, 64]), *tail)


@decoder("conv-daunhawer", year=2019, reference="daunhawer2019")
def daunhawer_decoder(code: int, shape: Shape) -> nn.Module:
    """256, then 64k4, 64k4, 32k4, 32k4 and the image; the last layer gives logits (table 2)."""
    channels, _ = image_side("conv-daunhawer", shape, 64)
    start = [nn.Linear(code, 256), nn.ReLU(), nn.Unflatten(1, (256, 1, 1)), nn.ConvTranspose2d(256, 64, 4), nn.ReLU()]
    return nn.Sequential(*start, *double([64, 64, 32, 32, channels]))


@encoder("conv-chen", year=2018, reference="chen2018")
def chen_encoder(
    shape: Shape, outputs: Outputs, *, widths: tuple[int, int, int, int, int] = (32, 32, 64, 64, 512)
) -> nn.Module:
    """Convolutions with BatchNorm (appendix H.1: 3D faces and chairs; CelebA has widths 64, 128, 128, 256, 512)."""
    channels, _ = image_side("conv-chen", shape, 64)
    top = [nn.Conv2d(widths[3], widths[4], 4), nn.BatchNorm2d(widths[4]), nn.ReLU()]
    return nn.Sequential(
        *halve([channels, *widths[:4]], normalised=True),
        *top,
        nn.Conv2d(widths[4], total(outputs), 1),
        nn.Flatten(),
    )


@decoder("conv-chen", year=2018, reference="chen2018")
def chen_decoder(
    code: int, shape: Shape, *, widths: tuple[int, int, int, int, int] = (32, 32, 64, 64, 512)
) -> nn.Module:
    """The transpose of the encoder, with BatchNorm (appendix H.1)."""
    channels, _ = image_side("conv-chen", shape, 64)
    low, mid, high, top, wide = widths
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, wide, 1), nn.BatchNorm2d(wide), nn.ReLU()]
    start += [nn.ConvTranspose2d(wide, top, 4), nn.BatchNorm2d(top), nn.ReLU()]
    return nn.Sequential(*start, *double([top, high, mid, low, channels], normalised=True))


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


def halve(
    channels: Sequence[int],
    kernel: int = 4,
    padding: int = 1,
    normalised: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> list[nn.Module]:
    """Convolutions that halve the image, each with an optional BatchNorm and an activation."""
    layers: list[nn.Module] = []
    for i in range(len(channels) - 1):
        layers.append(nn.Conv2d(channels[i], channels[i + 1], kernel, stride=2, padding=padding))
        layers += [nn.BatchNorm2d(channels[i + 1])] if normalised else []
        layers.append(activation())
    return layers


def double(
    channels: Sequence[int], normalised: bool = False, activation: Callable[[], nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """Transposed convolutions that double the image, with BatchNorm and activation between them, bare at the end."""
    layers: list[nn.Module] = []
    for i in range(len(channels) - 1):
        layers.append(nn.ConvTranspose2d(channels[i], channels[i + 1], 4, stride=2, padding=1))
        if i < len(channels) - 2:
            layers += [nn.BatchNorm2d(channels[i + 1])] if normalised else []
            layers.append(activation())
    return layers
