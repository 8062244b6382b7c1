"""Networks of adversarial models: leaky ReLU on both sides, so that every layer passes a gradient on.

The encoder is both the critic and the recognition network Q. They share all layers but the last one, which has rows for
each of them.
"""

from functools import partial

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, image_side, pixels, total
from unbraid.networks.conv import Widths, double, from_single_pixel, halve, to_single_pixel
from unbraid.types import Shape

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights (radford2016)."""

HALVINGS = {64: 4, 32: 3, 28: 2}
"""Number of halvings in `dcgan` by the side of an image: down to 4x4, or 7x7."""

leaky = partial(nn.LeakyReLU, 0.2)


@encoder("conv-infogan", reference="chen2018")
def conv_encoder(shape: Shape, outputs: Outputs, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """Convolutions with BatchNorm and leaky ReLU (appendix H.1, InfoGAN), initial weights of DCGAN."""
    channels, _ = image_side("conv-infogan", shape, 64)
    return _init_like_dcgan(to_single_pixel(channels, widths, total(outputs), leaky))


@decoder("conv-infogan", reference="chen2018")
def conv_decoder(code: int, shape: Shape, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """The transpose of the encoder, with BatchNorm and leaky ReLU (appendix H.1, InfoGAN)."""
    channels, _ = image_side("conv-infogan", shape, 64)
    return _init_like_dcgan(from_single_pixel(code, widths, channels, leaky))


@encoder("dcgan", reference="radford2016")
def dcgan_encoder(shape: Shape, outputs: Outputs, *, channels: int = 64) -> nn.Module:
    """Halving convolutions 64, 128, 256, 512 with leaky ReLU, BatchNorm in all but the first; 28x28, 32x32 or 64x64."""
    colours, side = image_side("dcgan", shape, *HALVINGS)
    widths = [channels * 2**level for level in range(HALVINGS[side])]
    body = [*halve([colours, channels], activation=leaky), *halve(widths, normalised=True, activation=leaky)]
    last = nn.Conv2d(widths[-1], total(outputs), side >> len(widths))
    return _init_like_dcgan(nn.Sequential(*body, last, nn.Flatten()))


@decoder("dcgan", reference="radford2016")
def dcgan_decoder(code: int, shape: Shape, *, channels: int = 64) -> nn.Module:
    """The transpose of the encoder with ReLU and BatchNorm in all but the last: 4x4x512, 256, 128, 64, image."""
    colours, side = image_side("dcgan", shape, *HALVINGS)
    widths = [channels * 2**level for level in reversed(range(HALVINGS[side]))]
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, widths[0], side >> len(widths))]
    start += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
    return _init_like_dcgan(nn.Sequential(*start, *double([*widths, colours], normalised=True)))


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
    return "dcgan" if _fits_dcgan(shape) else "mlp-infogan"


def choose_staged_gan_networks(shape: Shape) -> dict[str, str]:
    """Return the names of the default critic and refiner of a GAN on a first stage."""
    return {"encoder": choose_cgan_network(shape), "decoder": "adain" if _fits_dcgan(shape) else "mlp"}


def _fits_dcgan(shape: Shape) -> bool:
    return len(shape) == 3 and shape[1] == shape[2] and shape[1] in HALVINGS


def _init_like_dcgan(network: nn.Sequential) -> nn.Sequential:
    """Draw the initial weights of DCGAN (radford2016): N(0, .02^2), or N(1, .02^2) for BatchNorm; biases are 0."""
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)):
            assert layer.bias is not None
            nn.init.normal_(layer.weight, 1.0 if isinstance(layer, nn.BatchNorm2d) else 0.0, INITIAL_DEVIATION)
            nn.init.zeros_(layer.bias)
    return network
