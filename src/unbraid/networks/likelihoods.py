"""Likelihoods p(x | z) on a decoder's output. Log densities are sums over all pixels, in nats."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unbraid.errors import UsageError
from unbraid.kernels import allows_kernels
from unbraid.noise import TRITON
from unbraid.registry import Facts, Registry

likelihood: Registry[type["Likelihood"], Facts] = Registry("likelihood")
"""Decorator for a `Likelihood`; its keyword arguments are its settings."""


class Likelihood(nn.Module):
    """A distribution of observations with parameters from a decoder.

    `forward` runs inside the model and may add learned parameters; the other methods take its result.
    """

    def forward(self, raw: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name; `""` is the decoder's output."""
        return {"": raw}

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return log p(x | z), summed over the last `dims` dimensions of x."""
        raise NotImplementedError

    def mean(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the expected observation."""
        return parameters[""]


@likelihood("bernoulli")
class BernoulliLikelihood(Likelihood):
    """Bernoulli pixels on logits; grey values count as probabilities (cross-entropy)."""

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return x log p + (1 - x) log (1 - p)."""
        logits = parameters[""]
        suited = logits.is_cuda and logits.shape == x.shape and logits.dtype != torch.float64
        if TRITON and suited and allows_kernels():
            from unbraid.networks.bernoulli_kernel import bernoulli_log_prob

            rows, width = logits.shape[:-dims], math.prod(logits.shape[-dims:])
            flat = (part.reshape(-1, width).contiguous() for part in (logits, x))
            return bernoulli_log_prob(*flat).view(rows)
        loss = functional.binary_cross_entropy_with_logits(logits, x, reduction="none")
        return -loss.flatten(-dims).sum(-1)

    def mean(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return parameters[""].sigmoid()


class ScaledLikelihood(Likelihood):
    """A location family with one scale for all pixels, fixed or learned."""

    def __init__(self, *, scale: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        if not scale > 0:
            raise UsageError(f"A likelihood's scale must be above 0, not {scale}.")
        start = torch.full((1,), math.log(scale))
        if learned:
            self.log_scale = nn.Parameter(start)
        else:
            self.register_buffer("log_scale", start, persistent=False)

    def forward(self, raw: Tensor) -> dict[str, Tensor]:
        return {"": raw, "log_scale": self.log_scale}

    def _standardise(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> tuple[Tensor, Tensor]:
        log_scale = parameters["log_scale"]  # [1], or [member, 1]
        distance = (x - parameters[""]).flatten(-dims)
        log_scale = log_scale.unsqueeze(-2) if log_scale.ndim > 1 else log_scale
        return distance * (-log_scale).exp(), log_scale


@likelihood("gaussian")
class GaussianLikelihood(ScaledLikelihood):
    """Normal pixels around the decoder's output, with a fixed or one learned scale."""

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return -1/2 (x - mean)^2 / scale^2 - log scale - 1/2 log 2 pi."""
        standard, log_scale = self._standardise(parameters, x, dims)
        return (-0.5 * standard.square() - log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)


@likelihood("laplace")
class LaplaceLikelihood(ScaledLikelihood):
    """Laplace pixels around the decoder's output, with a fixed or one learned scale."""

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return -|x - location| / scale - log (2 scale)."""
        standard, log_scale = self._standardise(parameters, x, dims)
        return (-standard.abs() - log_scale - math.log(2)).sum(-1)


@likelihood("mixed")
class MixedLikelihood(ScaledLikelihood):
    """Numbers and classes side by side: Normal numbers with one scale, and one of K classes on K logits each.

    `widths` are those of the columns in order: 1 for a number, K for classes.
    """

    def __init__(self, *, widths: tuple[int, ...] = (1,), scale: float = 1.0, learned: bool = False) -> None:
        super().__init__(scale=scale, learned=learned)
        self.widths = tuple(widths)

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return the sum of the numbers' Normal log densities and of the classes' log p_k."""
        standard, log_scale = self._standardise(parameters, x, dims)
        normal = -0.5 * standard.square() - log_scale - 0.5 * math.log(2 * math.pi)
        terms = zip(*(part.split(self.widths, -1) for part in (normal, parameters[""], x)), strict=True)
        return sum((n if n.shape[-1] == 1 else each * raw.log_softmax(-1)).sum(-1) for n, raw, each in terms)  # type: ignore[return-value]

    def mean(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return expected numbers, and the probability of each class."""
        parts = parameters[""].split(self.widths, -1)
        return torch.cat([part if part.shape[-1] == 1 else part.softmax(-1) for part in parts], -1)


@likelihood("categorical")
class CategoricalLikelihood(Likelihood):
    """One of K classes, on logits; observations are one-hot vectors, or probabilities (cross-entropy)."""

    def log_prob(self, parameters: Mapping[str, Tensor], x: Tensor, dims: int) -> Tensor:
        """Return sum_k x_k log p_k."""
        return (x * parameters[""].log_softmax(-1)).flatten(-dims).sum(-1)

    def mean(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return parameters[""].softmax(-1)


def make_likelihood(name: str, settings: Mapping[str, Any]) -> Likelihood:
    entry = likelihood[name]
    return entry.make(**entry.resolve(settings))
