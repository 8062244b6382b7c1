"""A decoder in which the last coordinates of the code only modulate the others (msvae2020, appendix L)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import decoder, dense, image_side
from unbraid.networks.refiners import AdaIN, Modulated
from unbraid.types import Shape

MAP_CHANNELS = {64: (64, 64, 32, 32), 32: (64, 32), 28: (64, 32)}
"""Channels of the maps by the side of an image. The side doubles from map to map, and to the image."""


@decoder("conv-modulated", reference="msvae2020")
class ModulatedDecoder(nn.Module):
    """conv-locatello's or conv-small's decoder of all but the last coordinates, which enter by AdaIN."""

    def __init__(self, code: int, shape: Shape, *, modulating: int = 5, hidden: int = 256) -> None:
        super().__init__()
        colours, side = image_side("conv-modulated", shape, 28, 32, 64)
        if not 0 < modulating < code:
            raise UsageError(
                f"The decoder 'conv-modulated' takes {code} coordinates; modulating must be from 1 to {code - 1}, "
                f"not {modulating}."
            )
        channels = MAP_CHANNELS[side]
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
        """Return raw outputs [batch, *shape] of codes (c, z) [batch, width]."""
        c, z = torch.split(code, [code.shape[-1] - self.modulating, self.modulating], dim=-1)
        a = self.norm(self.start(c), z, relu=True)
        for step in self.up:
            a = step(a, z)
        return self.image(a)
