"""Registries of encoders and decoders, and the pieces they are built from.

An encoder is a function (shape of one observation, what to output) -> module from [batch, *shape] to [batch, outputs].
A decoder is a function (width of the code, shape) -> module from [batch, width] to [batch, *shape]. A name that is in
both registries is a network: `network=NAME` chooses both sides.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import nn

from unbraid.errors import UsageError
from unbraid.registry import Facts, Registry
from unbraid.types import Shape

Outputs = Mapping[str, int]
"""Names and widths of what an encoder produces, in order (see `Space.outputs`)."""


@dataclass(frozen=True)
class NetworkFacts(Facts):
    """`trial` holds settings of a small network, for tests."""

    trial: Mapping[str, Any] = field(default_factory=dict)


encoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("encoder", NetworkFacts)
decoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("decoder", NetworkFacts)


def total(outputs: Outputs) -> int:
    """Width of an encoder's flat output."""
    return sum(outputs.values())


def dense(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers with an activation between them, none after the last."""
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(pairwise(sizes)):
        layers += [activation()] if i else []
        layers.append(nn.Linear(width_in, width_out))
    return nn.Sequential(*layers)


def image_side(name: str, shape: Shape, *sides: int) -> tuple[int, int]:
    """Channels and side of a square image, or a sentence that says which images the network takes."""
    if len(shape) == 3 and shape[1] == shape[2] and shape[1] in sides:
        return shape[0], shape[1]
    wanted = " or ".join(f"{side}x{side}" for side in sides)
    raise UsageError(
        f"Network '{name}' takes {wanted} images, not observations of shape {tuple(shape)}; "
        "choose another network (unbraid list networks), or resize pictures of your own (data.size=…)."
    )


def pixels(shape: Shape) -> int:
    """Number of values in one observation."""
    return math.prod(shape)
