r"""A conditional coupling flow: observations to standard normal values and back, given a vector (dinh2016).

The values of an observation are divided into two parts. A coupling keeps one part a and moves the other part b by
numbers that a network computes from a and the condition h,

    affine   b -> b exp(s(a, h)) + t(a, h),    log |det| = sum s,
    spline   each value by a monotone rational-quadratic spline on [-5, 5] (durkan2019), by zuko,

and the next coupling exchanges the parts. Every coupling has an inverse, whatever its network is. `parts` is
`checkerboard` (the first part has the pixels whose row and column add up to an even number, in all channels) or `half`
(it has the first half of the values). Leading axes of values and conditions broadcast: [rows, 1, values] with
[components, h] gives every row under every component.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from unbraid.errors import UsageError
from unbraid.extras import import_extra
from unbraid.latents.flow_prior import make_spline
from unbraid.networks.base import NetworkFacts, dense, pixels
from unbraid.registry import Registry
from unbraid.shapes import broadcast_leading
from unbraid.types import Shape

flow: Registry[Callable[..., nn.Module], NetworkFacts] = Registry("flow", NetworkFacts)
"""A flow is a function (width of the condition, shape of one observation) -> module of (values, condition)."""

Parts = Literal["checkerboard", "half"]
Layers = Literal["affine", "spline"]

MAX_LOG_SCALE = 2.0
"""Smooth bound of |s|: no coupling stretches a value by more than e^2."""

LAST_LAYER_FACTOR = 0.1
"""Factor on the initial weights of last layers: the flow starts close to the identity."""


class Coupling(nn.Module):
    """The network of one coupling: from a part and the condition to `per` numbers for each value of the other."""

    def __init__(self, kept: int, moved: int, condition: int, hidden: tuple[int, ...], per: int) -> None:
        super().__init__()
        self.kept = nn.Linear(kept, hidden[0])
        self.condition = nn.Linear(condition, hidden[0], bias=False)
        self.rest = nn.Sequential(nn.ReLU(), *dense([*hidden, moved * per], nn.ReLU))
        self.per = per
        with torch.no_grad():
            for parameter in self.rest[-1].parameters():
                parameter.mul_(LAST_LAYER_FACTOR)

    def forward(self, kept: Tensor, condition: Tensor) -> Tensor:
        """Return numbers [..., moved, per]."""
        raw = self.rest(self.kept(kept) + self.condition(condition))
        return (raw if raw.dtype == torch.float64 else raw.float()).unflatten(-1, (-1, self.per))


@flow("coupling", reference="dinh2016")
class CouplingFlow(nn.Module):
    """Couplings that move two parts of the values in turn, each by a network with ReLU."""

    def __init__(
        self,
        condition: int,
        shape: Shape,
        *,
        couplings: int = 6,
        hidden: tuple[int, ...] = (256, 256),
        parts: Parts = "checkerboard",
        layers: Layers = "affine",
        bins: int = 8,
    ) -> None:
        super().__init__()
        size = pixels(shape)
        if size < 2:
            raise UsageError("A coupling flow divides an observation into two parts; this one has a single value.")
        if couplings < 2 or not hidden or min(hidden) < 1 or bins < 2:
            raise UsageError(
                f"A coupling flow needs at least 2 couplings, 2 bins and a hidden layer, not {couplings}, {bins} and "
                f"{list(hidden)}."
            )
        if layers == "spline":
            import_extra("zuko.transforms", "flows", "layers=spline", ", or use affine")
        first = _first_part(shape, parts)
        self.register_buffer("order", torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]]), persistent=False)
        self.register_buffer("back", self.order.argsort(), persistent=False)
        self.sizes = (int(first.sum()), int((~first).sum()))
        self.layers, self.bins = layers, bins
        per = 2 if layers == "affine" else 3 * bins - 1
        self.couplings = nn.ModuleList(
            Coupling(self.sizes[i % 2], self.sizes[1 - i % 2], condition, hidden, per) for i in range(couplings)
        )

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the base [..., size] of values x [..., size], and log |det| [...] of the map."""
        pair = list(x[..., self.order].split(self.sizes, -1))
        log_det = torch.zeros_like(x[..., 0])
        for i, coupling in enumerate(self.couplings):
            kept, moved = i % 2, 1 - i % 2
            pair[moved], slopes = self._move(pair[moved], coupling(pair[kept], condition))
            log_det = log_det + slopes.sum(-1)
        return self._join(pair), log_det

    def inverse(self, base: Tensor, condition: Tensor) -> Tensor:
        """Return the values [..., size] of a base."""
        pair = list(base[..., self.order].split(self.sizes, -1))
        for i, coupling in reversed(list(enumerate(self.couplings))):
            kept, moved = i % 2, 1 - i % 2
            pair[moved] = self._move_back(pair[moved], coupling(pair[kept], condition))
        return self._join(pair)

    def log_density(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return log p(x|h) [...] with a standard normal base."""
        base, log_det = self(x, condition)
        return log_det - 0.5 * (base.square() + math.log(2 * math.pi)).sum(-1)

    def _move(self, values: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        if self.layers == "spline":
            return make_spline(*self._knots(numbers)).call_and_ladj(values.expand(numbers.shape[:-1]))
        shift, log_scale = _affine(numbers)
        return values * log_scale.exp() + shift, log_scale

    def _move_back(self, values: Tensor, numbers: Tensor) -> Tensor:
        if self.layers == "spline":
            return make_spline(*self._knots(numbers)).inv(values.expand(numbers.shape[:-1]))
        shift, log_scale = _affine(numbers)
        return (values - shift) * (-log_scale).exp()

    def _knots(self, numbers: Tensor) -> tuple[Tensor, ...]:
        return numbers.split([self.bins, self.bins, self.bins - 1], -1)

    def _join(self, pair: list[Tensor]) -> Tensor:
        leading = broadcast_leading(pair)
        return torch.cat([part.expand(*leading, -1) for part in pair], -1)[..., self.back]


def _affine(numbers: Tensor) -> tuple[Tensor, Tensor]:
    shift, raw = numbers.unbind(-1)
    return shift, MAX_LOG_SCALE * torch.tanh(raw / MAX_LOG_SCALE)


def _first_part(shape: Shape, parts: Parts) -> Tensor:
    """Return a mask [size] of the values in the first part."""
    if parts == "half":
        return torch.arange(pixels(shape)) < (pixels(shape) + 1) // 2
    grid = torch.zeros(shape, dtype=torch.int64)
    for axis, length in enumerate(shape[-2:], start=max(len(shape) - 2, 0)):
        grid += torch.arange(length).view([-1 if a == axis else 1 for a in range(len(shape))])
    return (grid % 2 == 0).flatten()


def choose_flow_networks(shape: Shape) -> dict[str, str]:
    """Return the names of the default encoder and flow of a model whose decoder is a flow."""
    return {"encoder": "mlp", "decoder": "coupling"}
