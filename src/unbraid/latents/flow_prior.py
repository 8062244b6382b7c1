r"""Factorial normalising flow prior (chen2018, appendix C.2): p(z) = prod_d p(z_d), each p(z_d) a flow of depth 32.

The density direction is the explicit one: z_d goes through one-dimensional monotone functions to e, and

    log p(z_d) = log N(e; 0, 1) + sum_layers log |df/dz|.

`planar` layers are those of the authors' code, rezende2015's planar flows in one dimension,

    f(z) = z + u tanh(w z + b),    f'(z) = 1 + u w (1 - tanh^2(w z + b)).

There u and w are free, and f need not be monotone; here u / (1 + |u w|) stands for u, so that u w lies between -1 and 1
and every f has an inverse. It has no formula, but |f(z) - z| <= |u| brackets it, and draws are found by bisection.
`spline` layers are monotone rational-quadratic splines on [-5, 5] (durkan2019), by zuko.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid.errors import MissingExtraError, UsageError
from unbraid.latents.blocks import Block, Normal
from unbraid.latents.learned_priors import Prior, Tensors, prior

SPREAD = 0.02
"""Standard deviation of the first parameters, which are close to the identity."""

HALVINGS = 64

Layers = Literal["planar", "spline"]


@prior("flow", year=2018, reference="chen2018")
class FlowPrior(Prior):
    """Factorial normalising flow: each Normal variable has a flexible one-dimensional prior of its own."""

    covers = Normal
    factorised = True

    def __init__(
        self, blocks: Mapping[str, Block], *, depth: int = 32, layers: Layers = "planar", bins: int = 8
    ) -> None:
        super().__init__(blocks)
        if depth < 1 or bins < 2:
            raise UsageError(f"A flow needs at least 1 layer and 2 bins, not {depth} and {bins}.")
        if layers == "spline":
            _zuko()
        self.depth, self.layers, count = depth, layers, len(self.leaves)
        if layers == "planar":
            self.shapes = dict.fromkeys(("scale", "weight", "bias"), (depth, count))
        else:
            knots = {"widths": bins, "heights": bins, "slopes": bins - 1}
            self.shapes = {name: (depth, count, size) for name, size in knots.items()}

    def initial_parameters(self) -> dict[str, Tensor]:
        return {name: SPREAD * torch.randn(shape) for name, shape in self.shapes.items()}

    def to_base(self, prior: Tensors, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the base of values [..., batch, own], and the log derivative of the way there."""
        log_slope = torch.zeros_like(values)
        for layer in self._unstacked(prior):
            values, added = self._planar(values, *layer) if self.layers == "planar" else self._spline(values, *layer)
            log_slope = log_slope + added
        return values, log_slope

    def from_base(self, prior: Tensors, base: Tensor) -> Tensor:
        """Return the values of a base: the inverse of `to_base`.

        What bisection finds is a number; its derivative is that of a Newton step from there, of length 0.
        """
        layers = self._unstacked(prior)
        if self.layers == "spline":
            for layer in reversed(layers):
                base = _zuko().MonotonicRQSTransform(*layer).inv(base)
            return base
        reach = torch.stack([_bounded(scale, weight).abs() for scale, weight, _ in layers]).sum(0)
        low, high = (base - reach).detach(), (base + reach).detach()
        for _ in range(HALVINGS):
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
        """Return the values whose base is the noise."""
        return self.split_blocks(self.from_base(prior, self.join_blocks(noise)))

    def center(self, prior: Tensors) -> dict[str, Tensor]:
        """Return the medians: the values whose base is 0."""
        middle = self.join_blocks({name: b.center(prior[name]) for name, b in self.covered.items()})
        return self.split_blocks(self.from_base(prior, middle))

    def _unstacked(self, prior: Tensors) -> list[tuple[Tensor, ...]]:
        """Return parameters of each layer, with an axis for the batch."""
        first = -2 if self.layers == "planar" else -3
        parts = [p.unsqueeze(first).unbind(first - 1) for p in self.parameters(prior).values()]
        return list(zip(*parts, strict=True))

    def _planar(self, values: Tensor, scale: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scale = _bounded(scale, weight)
        bend = torch.tanh(weight * values + bias)
        return values + scale * bend, torch.log1p(scale * weight * (1 - bend.square()))

    def _spline(self, values: Tensor, *knots: Tensor) -> tuple[Tensor, Tensor]:
        return _zuko().MonotonicRQSTransform(*knots).call_and_ladj(values)


def _bounded(scale: Tensor, weight: Tensor) -> Tensor:
    """Return a scale whose product with the weight lies between -1 and 1."""
    return scale / (1 + (scale * weight).abs())


def _zuko() -> Any:
    """Return zuko's transforms, or raise a `UsageError` if it is not installed."""
    try:
        import zuko.transforms
    except ImportError as error:
        raise MissingExtraError("prior.layers=spline", "zuko", "flows", ", or use planar") from error
    return zuko.transforms
