"""conv-locatello (64x64) and conv-small (28x28, 32x32) with as many parameters as one asks for.

msvae2020 compares a model in stages with *Big* models of one stage that have as many parameters (appendix H). Channels
and hidden units grow together; then the hidden units, on which the number of parameters depends linearly, are set so
that it is met.
"""

from collections.abc import Callable

import torch
from torch import nn

from unbraid.errors import UsageError
from unbraid.networks.base import Outputs, decoder, dense, encoder, image_side, total
from unbraid.networks.conv import (
    double,
    halve,
    locatello_decoder,
    locatello_encoder,
    small_decoder,
    small_encoder,
)
from unbraid.types import Shape

STEP = 8
"""Channels are multiples of this, which GPUs multiply faster; hidden units too, where it costs no accuracy."""

HIDDEN = 8
"""Hidden units for each of the first convolution's channels, as in conv-locatello and conv-small."""

TOLERANCE = 0.005
Build = Callable[[int, int], nn.Module]
"""A network with some channels in its first convolution, and some hidden units."""


@encoder("conv-wide", year=2020, reference="msvae2020")
def wide_encoder(shape: Shape, outputs: Outputs, *, parameters: int = 1_000_000) -> nn.Module:
    """conv-locatello's or conv-small's encoder, widened until it has this many parameters."""
    channels, side = image_side("conv-wide", shape, 64, 28, 32)

    def build(width: int, hidden: int) -> nn.Module:
        if side < 64:
            return small_encoder(shape, outputs, width=width, hidden=hidden)
        return nn.Sequential(
            *halve([channels, width, width]),
            *halve([width, 2 * width, 2 * width], kernel=2, padding=0),
            nn.Flatten(),
            *dense([2 * width * 4 * 4, hidden, total(outputs)], nn.ReLU),
        )

    return _fitted("encoder", build, parameters)


@decoder("conv-wide", year=2020, reference="msvae2020")
def wide_decoder(code: int, shape: Shape, *, parameters: int = 1_000_000) -> nn.Module:
    """conv-locatello's or conv-small's decoder, widened until it has this many parameters."""
    channels, side = image_side("conv-wide", shape, 64, 28, 32)

    def build(width: int, hidden: int) -> nn.Module:
        if side < 64:
            return small_decoder(code, shape, width=width, hidden=hidden)
        start = [*dense([code, hidden, 2 * width * 4 * 4], nn.ReLU), nn.ReLU(), nn.Unflatten(1, (2 * width, 4, 4))]
        return nn.Sequential(*start, *double([2 * width, 2 * width, width, width, channels]))

    return _fitted("decoder", build, parameters)


def count_parameters(module: nn.Module) -> int:
    """Number of parameters, those of frozen parts included."""
    return sum(parameter.numel() for parameter in module.parameters())


def wide_settings(parameters: int, shape: Shape, outputs: Outputs, code: int) -> dict[str, str | int]:
    """Settings of a run whose encoder and decoder together have this many parameters.

    Each side gets the share that it has in conv-locatello or conv-small. `outputs` is what the encoder must give and
    `code` the width of what the decoder takes (`Space.outputs`, `Space.width`).
    """
    _, side = image_side("conv-wide", shape, 64, 28, 32)
    small = side < 64
    with torch.device("meta"):  # counted, never filled
        one = count_parameters((small_encoder if small else locatello_encoder)(shape, outputs))
        other = count_parameters((small_decoder if small else locatello_decoder)(code, shape))
    own = round(parameters * one / (one + other))
    return {"network": "conv-wide", "encoder.parameters": own, "decoder.parameters": parameters - own}


def _fitted(side: str, build: Build, parameters: int) -> nn.Module:
    """The network whose number of parameters is nearest, built once the widths are known."""

    def count(width: int, hidden: int) -> int:
        with torch.device("meta"):
            return count_parameters(build(width, hidden))

    width = STEP
    while abs(count(width + STEP, HIDDEN * (width + STEP)) - parameters) < abs(
        count(width, HIDDEN * width) - parameters
    ):
        width += STEP
    each = count(width, 2) - count(width, 1)
    hidden = (parameters - count(width, 1)) / each + 1
    if hidden < 1:
        least = count(STEP, 1)
        raise UsageError(f"The {side} 'conv-wide' needs at least {least:,} parameters here, not {parameters:,}.")
    step = STEP if each * STEP / 2 < TOLERANCE * parameters and hidden > STEP else 1
    return build(width, max(1, step * round(hidden / step)))
