"""Networks of adversarial models: leaky rectifiers on both sides, so that every layer passes a gradient on.

The encoder is the critic and the recognition network Q in one: they share all but the last layer, whose rows they
divide among themselves.
"""

from functools import partial
from typing import TypeVar

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, image_side, pixels, total
from unbraid.networks.conv import double, halve
from unbraid.types import Shape

SPREAD = 0.02
"""Standard deviation of initial weights (radford2016)."""

leaky = partial(nn.LeakyReLU, 0.2)

Made = TypeVar("Made", bound=nn.Module)
Widths = tuple[int, int, int, int, int]


@encoder("conv-infogan", year=2018, reference="chen2018")
def conv_encoder(shape: Shape, outputs: Outputs, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """Convolutions with BatchNorm and leaky ReLU (appendix H.1, InfoGAN), initial weights of DCGAN."""
    channels, _ = image_side("conv-infogan", shape, 64)
    top = [nn.Conv2d(widths[3], widths[4], 4), nn.BatchNorm2d(widths[4]), leaky()]
    last = [nn.Conv2d(widths[4], total(outputs), 1), nn.Flatten()]
    return radford(nn.Sequential(*halve([channels, *widths[:4]], normalised=True, activation=leaky), *top, *last))


@decoder("conv-infogan", year=2018, reference="chen2018")
def conv_decoder(code: int, shape: Shape, *, widths: Widths = (32, 32, 64, 64, 512)) -> nn.Module:
    """The transpose of the encoder, with BatchNorm and leaky ReLU (appendix H.1, InfoGAN)."""
    channels, _ = image_side("conv-infogan", shape, 64)
    low, mid, high, top, wide = widths
    start = [nn.Unflatten(1, (code, 1, 1)), nn.ConvTranspose2d(code, wide, 1), nn.BatchNorm2d(wide), leaky()]
    start += [nn.ConvTranspose2d(wide, top, 4), nn.BatchNorm2d(top), leaky()]
    return radford(nn.Sequential(*start, *double([top, high, mid, low, channels], normalised=True, activation=leaky)))


@encoder("mlp-infogan")
def mlp_encoder(shape: Shape, outputs: Outputs, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, leaky ReLU, for vectors and images of any size."""
    return nn.Sequential(nn.Flatten(), dense([pixels(shape), *hidden, total(outputs)], leaky))


@decoder("mlp-infogan")
def mlp_decoder(code: int, shape: Shape, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, leaky ReLU, for vectors and images of any size."""
    return nn.Sequential(dense([code, *hidden, pixels(shape)], leaky), nn.Unflatten(1, shape))


def adversarial_network(shape: Shape) -> str:
    """Name of the network here that takes these observations."""
    return "conv-infogan" if len(shape) == 3 and shape[1] == shape[2] == 64 else "mlp-infogan"


def radford(network: Made) -> Made:
    """DCGAN's initial weights (radford2016): N(0, .02^2), the scales of a BatchNorm around 1, biases 0."""
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d)):
            assert layer.bias is not None
            nn.init.normal_(layer.weight, 1.0 if isinstance(layer, nn.BatchNorm2d) else 0.0, SPREAD)
            nn.init.zeros_(layer.bias)
    return network
