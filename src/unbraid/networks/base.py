"""Registries of encoders and decoders, and the pieces they are built from.

An encoder is a function (shape of one observation, outputs) -> module from [batch, *shape] to [batch, output width]. A
decoder is a function (width of the code, shape) -> module from [batch, width] to [batch, *shape]. A name in both
registries is a network: `network=NAME` chooses both sides.
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
"""Names and widths of an encoder's outputs, in order (see `Space.outputs`)."""


@dataclass(frozen=True)
class NetworkFacts(Facts):
    """Facts of a network; `trial` holds settings that make it small, for tests."""

    trial: Mapping[str, Any] = field(default_factory=dict)


encoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("encoder", NetworkFacts)
decoder: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("decoder", NetworkFacts)


def total(outputs: Outputs) -> int:
    """Return the width of an encoder's flat output."""
    return sum(outputs.values())


def dense(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Build linear layers with an activation between them and none after the last."""
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(pairwise(sizes)):
        layers += [activation()] if i else []
        layers.append(nn.Linear(width_in, width_out))
    return nn.Sequential(*layers)


def image_side(name: str, shape: Shape, *sides: int) -> tuple[int, int]:
    """Return the channels and the side of a square image; raise a `UsageError` if its side is none of `sides`."""
    if len(shape) == 3 and shape[1] == shape[2] and shape[1] in sides:
        return shape[0], shape[1]
    wanted = " or ".join(f"{side}x{side}" for side in sides)
    raise UsageError(
        f"Network '{name}' takes {wanted} images, not observations of shape {tuple(shape)}; "
        "choose another network (unbraid list networks), or resize your own images (data.size=…)."
    )


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, frozen ones included."""
    return sum(parameter.numel() for parameter in module.parameters())


def pixels(shape: Shape) -> int:
    """Return the number of values in one observation."""
    return math.prod(shape)
