"""Networks of esmaeili2018 (appendix B): a trunk, and a branch for each mean and log variance.

Class logits are linear in the trunk's features. The tables' last sigmoid belongs to the likelihood, which takes logits.
Table 5 prints a ReLU after the mean and log variance of CelebA. We leave it out: a mean needs its sign, and tables 3
and 4 have none.
"""

import math

import torch
from torch import Tensor, nn

from unbraid.networks.base import Outputs, decoder, dense, encoder, halve_image, image_side, pixels
from unbraid.networks.conv import double, halve
from unbraid.types import Shape

BRANCHED = (".mean", ".log_variance")
"""Parameters with a hidden layer of their own."""


class Branches(nn.Module):
    """Heads on one trunk of `width` features, one per named output; their outputs are concatenated in order."""

    def __init__(self, trunk: nn.Module, width: int, hidden: int, outputs: Outputs) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(
            dense([width, hidden, size], nn.ReLU) if name.endswith(BRANCHED) else nn.Linear(width, size)
            for name, size in outputs.items()
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads], dim=-1)


@encoder("mlp-esmaeili-28", reference="esmaeili2018")
def mlp_28_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """400, then class logits and branches of 200 for mean and log variance, ReLU (table 3: MNIST, Fashion-MNIST)."""
    image_side("mlp-esmaeili-28", shape, 28)
    trunk = nn.Sequential(nn.Flatten(), *dense([pixels(shape), 400], nn.ReLU), nn.ReLU())
    return Branches(trunk, 400, 200, outputs)


@decoder("mlp-esmaeili-28", reference="esmaeili2018")
def mlp_28_decoder(code: int, shape: Shape) -> nn.Module:
    """200, 400, ReLU (table 3: MNIST, Fashion-MNIST)."""
    image_side("mlp-esmaeili-28", shape, 28)
    return nn.Sequential(dense([code, 200, 400, pixels(shape)], nn.ReLU), nn.Unflatten(1, shape))


@encoder("mlp-esmaeili-64", reference="esmaeili2018")
def mlp_64_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """1200, 1200, then class logits and branches of 400 for mean and log variance, ReLU (table 4: dSprites)."""
    image_side("mlp-esmaeili-64", shape, 64)
    trunk = nn.Sequential(nn.Flatten(), *dense([pixels(shape), 1200, 1200], nn.ReLU), nn.ReLU())
    return Branches(trunk, 1200, 400, outputs)


@decoder("mlp-esmaeili-64", reference="esmaeili2018")
def mlp_64_decoder(code: int, shape: Shape) -> nn.Module:
    """400, 1200, 1200, tanh (table 4: dSprites)."""
    image_side("mlp-esmaeili-64", shape, 64)
    return nn.Sequential(dense([code, 400, 1200, 1200, pixels(shape)], nn.Tanh), nn.Unflatten(1, shape))


@encoder("conv-esmaeili", reference="esmaeili2018")
def conv_encoder(shape: Shape, outputs: Outputs) -> nn.Module:
    """32, 32, 64, 64, each k4 stride 2 with BatchNorm, then logits and branches of 256 (table 5: CelebA)."""
    maps = halve_image("conv-esmaeili", shape)
    widths = maps.spread([32, 32, 64, 64])
    trunk = nn.Sequential(*halve([maps.channels, *widths], normalised=True), nn.Flatten())
    return Branches(trunk, widths[-1] * math.prod(maps.end), 256, outputs)


@decoder("conv-esmaeili", reference="esmaeili2018")
def conv_decoder(code: int, shape: Shape) -> nn.Module:
    """256, 4x4x64 tanh, then 64, 32, 32 with BatchNorm and the image, each k4 stride 2 (table 5: CelebA)."""
    maps = halve_image("conv-esmaeili", shape)
    widths = [*reversed(maps.spread([32, 32, 64, 64]))]
    first = (widths[0], *maps.start)
    start = [*dense([code, 256, math.prod(first)], nn.ReLU), nn.Tanh(), nn.Unflatten(1, first)]
    return nn.Sequential(*start, *double([*widths, maps.channels], normalised=True), *maps.crop())
