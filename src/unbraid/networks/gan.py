"""Networks of adversarial models: leaky ReLU on both sides, so that every layer passes a gradient on.

The encoder is both the critic and the recognition network Q. They share all layers but the last one, which has rows for
each of them.
"""

from functools import partial

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, halve_image, pixels, total
from unbraid.networks.conv import Widths, double, from_single_pixel, halve, to_single_pixel
from unbraid.types import Shape

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights (radford2016)."""

DCGAN_WIDENINGS = (1, 2, 4, 8)
"""Widths of `dcgan` in units of its channels."""

REFINED_SIDES = (28, 32, 64)
"""Sides of the images that the refiner `adain` takes."""

leaky = partial(nn.LeakyReLU, 0.2)


@encoder("conv-infogan", reference="chen2018")
def conv_encoder(shape: Shape, outputs: Outputs, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """Convolutions with BatchNorm and leaky ReLU (appendix H.1, InfoGAN), initial weights of DCGAN."""
    maps = halve_image("conv-infogan", shape)
    return _init_like_dcgan(to_single_pixel(maps, widths, total(outputs), leaky))


@decoder("conv-infogan", reference="chen2018")
def conv_decoder(code: int, shape: Shape, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """The transpose of the encoder, with BatchNorm and leaky ReLU (appendix H.1, InfoGAN)."""
    return _init_like_dcgan(from_single_pixel(code, widths, halve_image("conv-infogan", shape), leaky))


@encoder("dcgan", reference="radford2016")
def dcgan_encoder(shape: Shape, outputs: Outputs, *, channels: int = 64) -> nn.Module:
    """Halving convolutions 64, 128, 256, 512 (64x64) with leaky ReLU, BatchNorm in all but the first."""
    maps = halve_image("dcgan", shape)
    widths = maps.spread([channels * times for times in DCGAN_WIDENINGS])
    body = [*halve([maps.channels, channels], activation=leaky), *halve(widths, normalised=True, activation=leaky)]
    last = nn.Conv2d(widths[-1], total(outputs), maps.end)
    return _init_like_dcgan(nn.Sequential(*body, last, nn.Flatten()))


@decoder("dcgan", reference="radford2016")
def dcgan_decoder(code: int, shape: Shape, *, channels: int = 64) -> nn.Module:
    """The transpose of the encoder with ReLU and BatchNorm in all but the last: 4x4x512, 256, 128, 64, image."""
    maps = halve_image("dcgan", shape)
    widths = [*reversed(maps.spread([channels * times for times in DCGAN_WIDENINGS]))]
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, widths[0], maps.start)]
    start += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
    return _init_like_dcgan(nn.Sequential(*start, *double([*widths, maps.channels], normalised=True), *maps.crop()))


@encoder("mlp-infogan")
def mlp_encoder(shape: Shape, outputs: Outputs, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, leaky ReLU, for vectors and images of any size."""
    return nn.Sequential(nn.Flatten(), dense([pixels(shape), *hidden, total(outputs)], leaky))


@decoder("mlp-infogan")
def mlp_decoder(code: int, shape: Shape, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, leaky ReLU, for vectors and images of any size."""
    return nn.Sequential(dense([code, *hidden, pixels(shape)], leaky), nn.Unflatten(1, shape))


def choose_gan_network(shape: Shape) -> str:
    """Return the name of the default network of InfoGAN."""
    return "conv-infogan" if len(shape) == 3 and shape[1] == shape[2] == 64 else "mlp-infogan"


def choose_cgan_network(shape: Shape) -> str:
    """Return the name of the default network of a conditional GAN."""
    return "dcgan" if _fits_adain(shape) else "mlp-infogan"


def choose_staged_gan_networks(shape: Shape) -> dict[str, str]:
    """Return the names of the default critic and refiner of a GAN on a first stage."""
    return {"encoder": choose_cgan_network(shape), "decoder": "adain" if _fits_adain(shape) else "mlp"}


def _fits_adain(shape: Shape) -> bool:
    return len(shape) == 3 and shape[1] == shape[2] and shape[1] in REFINED_SIDES


def _init_like_dcgan(network: nn.Sequential) -> nn.Sequential:
    """Draw the initial weights of DCGAN (radford2016): N(0, .02^2), or N(1, .02^2) for BatchNorm; biases are 0."""
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)):
            assert layer.bias is not None
            nn.init.normal_(layer.weight, 1.0 if isinstance(layer, nn.BatchNorm2d) else 0.0, INITIAL_DEVIATION)
            nn.init.zeros_(layer.bias)
    return network
