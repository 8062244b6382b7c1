"""A decoder whose last code coordinates only modulate what the others draw (msvae2020, appendix L)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import decoder, dense, image_side
from unbraid.networks.refiners import AdaIN, Modulated
from unbraid.types import Shape

LEVELS = {64: (64, 64, 32, 32), 32: (64, 32), 28: (64, 32)}
"""Channels of the maps, by the side of an image: each map has twice the side of the one before, as the image has."""


class ModulatedDecoder(nn.Module):
    """Dense layers and doubling convolutions on c; each map is normalised, scaled and shifted as z says."""

    def __init__(self, code: int, shape: Shape, modulating: int, hidden: int) -> None:
        super().__init__()
        colours, side = image_side("conv-modulated", shape, 28, 32, 64)
        channels = LEVELS[side]
        start = side // 2 ** len(channels)
        self.modulating = modulating
        first = (channels[0], start, start)
        self.start = nn.Sequential(
            *dense([code - modulating, hidden, channels[0] * start**2], nn.ReLU), nn.Unflatten(1, first)
        )
        self.norm = AdaIN(modulating, channels[0], start)
        self.up = nn.ModuleList(
            Modulated(
                nn.ConvTranspose2d(*ends, 4, stride=2, padding=1, bias=False),
                AdaIN(modulating, ends[1], start * 2 ** (level + 1)),
            )
            for level, ends in enumerate(pairwise(channels))
        )
        self.image = nn.ConvTranspose2d(channels[-1], colours, 4, stride=2, padding=1)

    def forward(self, code: Tensor) -> Tensor:
        """Codes [batch, c + z] to raw outputs [batch, *shape]."""
        c, z = torch.split(code, [code.shape[-1] - self.modulating, self.modulating], dim=-1)
        a = self.norm(self.start(c), z).relu()
        for step in self.up:
            a = step(a, z)
        return self.image(a)


@decoder("conv-modulated", year=2020, reference="msvae2020")
def conv_modulated(code: int, shape: Shape, *, modulating: int = 5, hidden: int = 256) -> nn.Module:
    """conv-locatello's or conv-small's decoder of all but the last coordinates, which enter by AdaIN alone."""
    image_side("conv-modulated", shape, 28, 32, 64)
    if not 0 < modulating < code:
        raise UsageError(
            f"The decoder 'conv-modulated' has {code} coordinates, of which 1 to {code - 1} may be modulating, "
            f"not {modulating}."
        )
    return ModulatedDecoder(code, shape, modulating, hidden)
