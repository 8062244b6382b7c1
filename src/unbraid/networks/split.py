"""Encoders of split2020, with more or fewer layers that are private to one factor. Their decoder is conv-locatello's.

A *factor* is one coordinate of a latent block; its outputs are that coordinate of each parameter of the block (mean and
log variance of a Normal). In conv-locatello only the last linear layer is private, one row per factor. In `split` the
last three layers are private (section 3.2), in `shared` none (section 5.1). `wide` adds a comparison:
conv-locatello with as many parameters as `split`.
"""

import math
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.networks.base import Outputs, count_parameters, dense, encoder, image_side, total
from unbraid.networks.conv import halve
from unbraid.types import Shape

FEATURES, FEATURES_SIDE = 64, 8
"""Channels and side of the output of conv-locatello's first three convolutions, which all encoders here share."""

MAP_SIDE = 7
"""Side of the map whose positions are the factors of `shared`."""


class OutputBlock(NamedTuple):
    """One latent block: the number of its coordinates, and of parameters of each."""

    size: int
    parameters: int


def _group_outputs(name: str, outputs: Outputs) -> list[OutputBlock]:
    blocks = []
    for block, group in groupby(outputs.items(), key=lambda item: item[0].partition(".")[0]):
        sizes = [size for _, size in group]
        if len(set(sizes)) > 1:
            raise UsageError(
                f"Encoder '{name}' needs parameters of one width in each latent block, but those of block '{block}' "
                f"have widths {', '.join(map(str, sizes))}; choose another encoder."
            )
        blocks.append(OutputBlock(sizes[0], len(sizes)))
    return blocks


def _build_trunk(channels: int) -> list[nn.Module]:
    return [*halve([channels, 32, 32]), *halve([32, FEATURES], kernel=2, padding=0)]


class PrivateLinear(nn.Module):
    """A linear layer for each factor, as one batched product: [factor, batch, in] to [factor, batch, out]."""

    def __init__(self, factors: int, width_in: int, width_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width_in)  # as in `nn.Linear`
        self.weight = nn.Parameter(torch.empty(factors, width_in, width_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(factors, width_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight
        # Autocast does not cover the addition: a float32 bias would make everything after it float32.
        return out + self.bias.unsqueeze(-2).to(out.dtype)


class SplitEncoder(nn.Module):
    """Shared convolutions, then one convolution and two linear layers for each factor.

    All private convolutions read the same features. So together they are one plain convolution with `width` channels
    per factor, and members compute it as a matrix product like any other.
    """

    def __init__(self, channels: int, parts: list[OutputBlock], width: int, hidden: int) -> None:
        super().__init__()
        self.parts, self.width = parts, width
        factors = sum(part.size for part in parts)
        self.trunk = nn.Sequential(*_build_trunk(channels))
        self.convolution = nn.Conv2d(FEATURES, factors * width, 2, stride=2)
        self.hidden = PrivateLinear(factors, width * (FEATURES_SIDE // 2) ** 2, hidden)
        self.heads = nn.ModuleList(PrivateLinear(part.size, hidden, part.parameters) for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        features = self.convolution(self.trunk(x)).relu().unflatten(1, (-1, self.width))
        # Keep the channels of one factor together, as in the channels-last memory of members' convolutions.
        features = features.permute(1, 0, 3, 4, 2).flatten(2)  # [factor, batch, row column channel]
        hidden = self.hidden(features).relu().split([part.size for part in self.parts])
        by_block = [head(h) for head, h in zip(self.heads, hidden, strict=True)]  # [factor, batch, parameter]
        return torch.cat([out.permute(1, 2, 0).flatten(1) for out in by_block], dim=-1)


@encoder("shared", reference="split2020")
class SharedEncoder(nn.Module):
    """conv-locatello without private layers: latent coordinates are positions of its last map (10 of them: 2x5).

    The map has one channel per parameter of a block: all means, then all log variances. Its last convolution has stride
    1, not 2 as in conv-locatello: five columns pooled from four would be linearly dependent.
    """

    def __init__(self, shape: Shape, outputs: Outputs) -> None:
        super().__init__()
        channels, _ = image_side("shared", shape, 64)
        self.parts = _group_outputs("shared", outputs)
        factors = sum(part.size for part in self.parts)
        if factors > MAP_SIDE**2:
            raise UsageError(
                f"Encoder 'shared' has {MAP_SIDE}x{MAP_SIDE} positions for latent coordinates, too few for {factors}; "
                "use fewer latents or another encoder."
            )
        last = nn.Conv2d(FEATURES, max(part.parameters for part in self.parts), 2)
        self.map = nn.Sequential(*_build_trunk(channels), last, nn.Flatten(2))
        # A matrix, because the gradient of torch's pooling over overlapping windows is not deterministic.
        pixels = torch.eye(MAP_SIDE**2).unflatten(1, (MAP_SIDE, MAP_SIDE))
        pooling = F.adaptive_avg_pool2d(pixels, grid_shape(factors)).flatten(1)[:, :factors]
        self.register_buffer("pooling", pooling.contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        pooled = (self.map(x) @ self.pooling).split([part.size for part in self.parts], dim=-1)
        by_block = [p[:, : part.parameters].flatten(1) for p, part in zip(pooled, self.parts, strict=True)]
        return torch.cat(by_block, dim=-1)


def grid_shape(factors: int) -> tuple[int, int]:
    """Return rows and columns of the grid of factors, as near to square as possible.

    It is a rectangle with exactly `factors` positions if its longer side fits the map (10 = 2x5, 12 = 3x4, 7 = 1x7).
    Else it is the smallest grid that is about square, and its last positions stay unused (11 of 4x3).
    """
    rows = max(r for r in range(1, math.isqrt(factors) + 1) if factors % r == 0)
    if factors // rows > MAP_SIDE:
        rows = math.isqrt(factors - 1) + 1
    return rows, math.ceil(factors / rows)


@encoder("split", reference="split2020")
def split_encoder(shape: Shape, outputs: Outputs, *, width: int = 64, hidden: int = 256) -> nn.Module:
    """conv-locatello whose last convolution and both linear layers are private to each latent coordinate."""
    channels, _ = image_side("split", shape, 64)
    return SplitEncoder(channels, _group_outputs("split", outputs), width, hidden)


@encoder("wide", reference="split2020")
def wide_encoder(shape: Shape, outputs: Outputs, *, width: int = 64, hidden: int = 256) -> nn.Module:
    """conv-locatello with its last layers widened until it has as many parameters as `split` of the same settings."""
    channels, _ = image_side("wide", shape, 64)
    with torch.device("meta"):  # counted, never filled
        trunk = count_parameters(nn.Sequential(*_build_trunk(channels)))
        split = count_parameters(SplitEncoder(channels, _group_outputs("wide", outputs), width, hidden))
    channels_out, wide = _solve_widths(split - trunk, width, hidden, total(outputs))
    body = [*_build_trunk(channels), *halve([FEATURES, channels_out], kernel=2, padding=0)]
    tail = dense([channels_out * (FEATURES_SIDE // 2) ** 2, wide, total(outputs)], nn.ReLU)
    return nn.Sequential(*body, nn.Flatten(), *tail)


def _solve_widths(count: int, width: int, hidden: int, outputs: int) -> tuple[int, int]:
    """Return channels C and hidden units H, in about the ratio width : hidden, of layers with `count` parameters.

    Solve (4 · 64 + 1) C + (16 C + 1) H + (H + 1) outputs = count for a common factor of C and H; then round C and solve
    for H. C and a large H are multiples of 8, which GPUs multiply faster.
    """
    kernel, area = 4 * FEATURES + 1, (FEATURES_SIDE // 2) ** 2
    a, b = area * width * hidden, kernel * width + (1 + outputs) * hidden
    factor = (math.sqrt(b**2 + 4 * a * (count - outputs)) - b) / (2 * a)
    channels = max(8, 8 * round(factor * width / 8))
    units = (count - outputs - kernel * channels) / (area * channels + 1 + outputs)
    step = 8 if units >= 256 else 1
    return channels, max(step, step * round(units / step))
