"""The residual encoder of msvae2020: what a coarse observation lacks, x - y, to the posterior of z."""

from itertools import pairwise

from torch import nn

from unbraid.networks.base import Outputs, encoder, image_side, total
from unbraid.types import Shape


@encoder("conv-residual", year=2020, reference="msvae2020")
def residual(shape: Shape, outputs: Outputs, *, channels: int = 64) -> nn.Module:
    """64k5, 128k5, 256k5, 512k5, each stride 2, ReLU, and one linear layer."""
    colours, side = image_side("conv-residual", shape, 28, 32, 64)
    layers: list[nn.Module] = []
    for first, last in pairwise([colours, *(channels * 2**level for level in range(4))]):
        layers += [nn.Conv2d(first, last, 5, stride=2, padding=2), nn.ReLU()]
        side = (side + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * channels * side * side, total(outputs)))
