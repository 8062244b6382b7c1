r"""Factorial normalising flow prior (chen2018, appendix C.2): p(z) = prod_d p(z_d), each p(z_d) a flow of depth 32.

Monotone one-dimensional functions take z_d to e, and

    log p(z_d) = log N(e; 0, 1) + sum_layers log |df/dz|.

`planar` layers are those of the authors' code, rezende2015's planar flows in one dimension,

    f(z) = z + u tanh(w z + b),    f'(z) = 1 + u w (1 - tanh^2(w z + b)).

In that code u and w are free, and f need not be monotone. Here u / (1 + |u w|) replaces u, so that u w lies between -1
and 1 and every f has an inverse. The inverse has no formula; bisection finds it between z - |u| and z + |u|. `spline`
layers are monotone rational-quadratic splines on [-5, 5] (durkan2019), by zuko.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.extras import import_extra
from unbraid.latents.blocks import Block, Normal
from unbraid.latents.learned_priors import Prior, Tensors, prior

INITIAL_DEVIATION = 0.02
"""Standard deviation of the first parameters: the flow starts close to the identity."""

BISECTION_STEPS = 64

Layers = Literal["planar", "spline"]


@prior("flow", reference="chen2018")
class FlowPrior(Prior):
    """Factorial normalising flow: each Normal variable has its own flexible prior."""

    covers = Normal
    factorised = True

    def __init__(
        self, blocks: Mapping[str, Block], *, depth: int = 32, layers: Layers = "planar", bins: int = 8
    ) -> None:
        super().__init__(blocks)
        if depth < 1 or bins < 2:
            raise UsageError(f"A flow needs at least 1 layer and 2 bins, not {depth} and {bins}.")
        if layers == "spline":
            import_extra("zuko.transforms", "flows", "prior.layers=spline", ", or use planar")
        self.depth, self.layers, count = depth, layers, len(self.leaves)
        if layers == "planar":
            self.shapes = dict.fromkeys(("scale", "weight", "bias"), (depth, count))
        else:
            knots = {"widths": bins, "heights": bins, "slopes": bins - 1}
            self.shapes = {name: (depth, count, size) for name, size in knots.items()}

    def initial_parameters(self) -> dict[str, Tensor]:
        return {name: INITIAL_DEVIATION * torch.randn(shape) for name, shape in self.shapes.items()}

    def to_base(self, prior: Tensors, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return e for values z [..., batch, covered leaves], and log |de/dz|."""
        log_slope = torch.zeros_like(values)
        for layer in self._layers(prior):
            values, added = (_planar if self.layers == "planar" else _spline)(values, *layer)
            log_slope = log_slope + added
        return values, log_slope

    def from_base(self, prior: Tensors, base: Tensor) -> Tensor:
        """Return the values of a base: the inverse of `to_base`.

        Bisection finds a number without a gradient; a Newton step of length 0 from there has the right one.
        """
        layers = self._layers(prior)
        if self.layers == "spline":
            for layer in reversed(layers):
                base = make_spline(*layer).inv(base)
            return base
        reach = torch.stack([_bound(scale, weight).abs() for scale, weight, _ in layers]).sum(0)
        low, high = (base - reach).detach(), (base + reach).detach()
        for _ in range(BISECTION_STEPS):
            middle = (low + high) / 2
            below = self.to_base(prior, middle)[0].detach() < base.detach()
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        found = (low + high) / 2
        reached, log_slope = self.to_base(prior, found)
        return found - (reached - base) * (-log_slope.detach()).exp()

    def marginal_densities(self, prior: Tensors, values: Tensors) -> Tensor:
        base, log_slope = self.to_base(prior, self.join_blocks(values))
        return log_slope - 0.5 * (base.square() + math.log(2 * math.pi))

    def draw(self, prior: Tensors, noise: Tensors) -> dict[str, Tensor]:
        return self.split_blocks(self.from_base(prior, self.join_blocks(noise)))

    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return the medians: the values whose base is 0."""
        middle = self.join_blocks({name: b.center(prior[name]) for name, b in self.covered.items()})
        return self.split_blocks(self.from_base(prior, middle))

    def _layers(self, prior: Tensors) -> list[tuple[Tensor, ...]]:
        """Return the parameters of each layer, with an axis for the batch."""
        first = -2 if self.layers == "planar" else -3
        parts = [p.unsqueeze(first).unbind(first - 1) for p in self.parameters(prior).values()]
        return list(zip(*parts, strict=True))


def _planar(values: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scale = _bound(scale, weight)
    bend = torch.tanh(weight * values + bias)
    return values + scale * bend, torch.log1p(scale * weight * (1 - bend.square()))


def _spline(values: Tensor, *knots: Tensor) -> tuple[Tensor, Tensor]:
    return make_spline(*knots).call_and_ladj(values)


def make_spline(widths: Tensor, heights: Tensor, slopes: Tensor) -> Any:
    """Return a monotone rational-quadratic spline on [-5, 5] (durkan2019), a transform of zuko."""
    from zuko.transforms import MonotonicRQSTransform

    return MonotonicRQSTransform(widths, heights, slopes)


def _bound(scale: Tensor, weight: Tensor) -> Tensor:
    """Return a scale whose product with the weight lies between -1 and 1."""
    return scale / (1 + (scale * weight).abs())
