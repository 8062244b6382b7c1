"""conv-locatello and conv-small (for images with a side below 48) with a chosen number of parameters.

msvae2020 compares a model in stages with *Big* models of one stage and equally many parameters (appendix H). Channels
and hidden units grow together first. Then the hidden units, in which the number of parameters is linear, meet it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from unbraid.errors import UsageError
from unbraid.networks.base import Outputs, count_parameters, decoder, encoder, halve_image
from unbraid.networks.conv import (
    locatello_decoder,
    locatello_encoder,
    small_decoder,
    small_encoder,
    wide_locatello_decoder,
    wide_locatello_encoder,
)
from unbraid.types import Shape

CHANNEL_STEP = 8
"""Channels are multiples of this, which GPUs multiply faster; hidden units, too, if the error stays in `TOLERANCE`."""

HIDDEN_PER_CHANNEL = 8
"""Hidden units per channel of the first convolution, as in conv-locatello and conv-small."""

TOLERANCE = 0.005

SMALLEST_LOCATELLO_SIDE = 48
"""Smaller images have conv-small."""

Build = Callable[..., nn.Module]
"""Function from `width`, the channels of the first convolution, and `hidden` units to a network."""


@encoder("conv-wide", reference="msvae2020")
def wide_encoder(shape: Shape, outputs: Outputs, *, parameters: int = 1_000_000) -> nn.Module:
    """conv-locatello's or conv-small's encoder, widened until it has this many parameters."""
    build = small_encoder if _is_small(shape) else wide_locatello_encoder
    return _build_with("encoder", partial(build, shape, outputs), parameters)


@decoder("conv-wide", reference="msvae2020")
def wide_decoder(code: int, shape: Shape, *, parameters: int = 1_000_000) -> nn.Module:
    """conv-locatello's or conv-small's decoder, widened until it has this many parameters."""
    build = small_decoder if _is_small(shape) else wide_locatello_decoder
    return _build_with("decoder", partial(build, code, shape), parameters)


def wide_settings(parameters: int, shape: Shape, outputs: Outputs, code: int) -> dict[str, str | int]:
    """Return the settings of a run whose encoder and decoder have `parameters` parameters together.

    Each side gets its share in conv-locatello or conv-small. Pass `Space.outputs` and `Space.width`.
    """
    small = _is_small(shape)
    with torch.device("meta"):  # counted, never filled
        encoder_count = count_parameters((small_encoder if small else locatello_encoder)(shape, outputs))
        decoder_count = count_parameters((small_decoder if small else locatello_decoder)(code, shape))
    share = round(parameters * encoder_count / (encoder_count + decoder_count))
    return {"network": "conv-wide", "encoder.parameters": share, "decoder.parameters": parameters - share}


def _is_small(shape: Shape) -> bool:
    return min(halve_image("conv-wide", shape).image) < SMALLEST_LOCATELLO_SIDE


def _build_with(side: str, build: Build, parameters: int) -> nn.Module:
    """Build the network whose number of parameters is nearest to `parameters`."""

    def count(width: int, hidden: int) -> int:
        with torch.device("meta"):
            return count_parameters(build(width=width, hidden=hidden))

    def error(width: int) -> int:
        return abs(count(width, HIDDEN_PER_CHANNEL * width) - parameters)

    width = CHANNEL_STEP
    while error(width + CHANNEL_STEP) < error(width):
        width += CHANNEL_STEP
    each = count(width, 2) - count(width, 1)
    hidden = (parameters - count(width, 1)) / each + 1
    if hidden < 1:
        fewest = count(CHANNEL_STEP, 1)
        raise UsageError(f"The {side} 'conv-wide' needs at least {fewest:,} parameters here, not {parameters:,}.")
    exact_enough = each * CHANNEL_STEP / 2 < TOLERANCE * parameters
    step = CHANNEL_STEP if exact_enough and hidden > CHANNEL_STEP else 1
    return build(width=width, hidden=max(1, step * round(hidden / step)))
