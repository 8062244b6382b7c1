"""Fully connected networks, for images of any size and for vectors."""

from torch import nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, pixels, total
from unbraid.types import Shape


@encoder("mlp")
def mlp_encoder(shape: Shape, outputs: Outputs, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, ReLU."""
    return nn.Sequential(nn.Flatten(), dense([pixels(shape), *hidden, total(outputs)], nn.ReLU))


@decoder("mlp")
def mlp_decoder(code: int, shape: Shape, *, hidden: tuple[int, ...] = (256, 256)) -> nn.Module:
    """Hidden layers of the given widths, ReLU."""
    return nn.Sequential(dense([code, *hidden, pixels(shape)], nn.ReLU), nn.Unflatten(1, shape))


@encoder("mlp-chen", reference="chen2018")
def mlp_chen_encoder(shape: Shape, outputs: Outputs, *, width: int = 1200) -> nn.Module:
    """Two hidden layers of 1200, ReLU (appendix H.1, dSprites)."""
    return nn.Sequential(nn.Flatten(), dense([pixels(shape), width, width, total(outputs)], nn.ReLU))


@decoder("mlp-chen", reference="chen2018")
def mlp_chen_decoder(code: int, shape: Shape, *, width: int = 1200) -> nn.Module:
    """Three hidden layers of 1200, tanh (appendix H.1, dSprites)."""
    return nn.Sequential(dense([code, width, width, width, pixels(shape)], nn.Tanh), nn.Unflatten(1, shape))
