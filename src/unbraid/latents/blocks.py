"""Latent blocks: the families that a posterior, a prior and their densities may belong to.

A block is static structure; its parameters travel as one flat tensor [..., batch, parameters], so that a whole model
is a tensor function. A *leaf* is the smallest variable that a decomposition splits off: one coordinate of a Normal, a
whole categorical variable.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.noise import Need
from unbraid.registry import Facts, Registry

block: Registry[type["Block"], Facts] = Registry("latent block")
"""Decorator for a `Block`; its keyword arguments are the block's settings."""


class Block(ABC):
    """One named part of the code.

    `parameters` maps the names of what an encoder gives to their widths, in order; `width` is the number of coordinates
    that the decoder sees and `leaves` the number of variables. A *value* is what densities are taken of; the decoder
    sees its *code*, which for most blocks is the value itself.
    """

    parameters: dict[str, int]
    width: int
    leaves: int
    closed_form = True
    """Whether the KL needs no draw."""
    has_density = True
    """Whether a posterior has a density; one that is a point has none."""
    discrete = False
    """Whether variables stand for classes."""
    coupled = False
    """Whether the leaves of one posterior depend on each other."""
    extra_kl = 0.0
    """What KL(posterior || prior) has beyond the sum over leaves, where they do."""

    @property
    def parameter_count(self) -> int:
        """Width of the flat parameter tensor."""
        return sum(self.parameters.values())

    def needs(self, name: str, batch: int) -> dict[str, Need]:
        """Return the noise that a step draws for this block, by name; `sample` gets that of the block's own name."""
        return {name: self.need(batch)}

    def complete(self, parameters: Tensor, step: Tensor | None) -> Tensor:
        """Return an encoder's output as the flat parameters of a posterior; `step` is None outside of training."""
        return parameters

    @abstractmethod
    def need(self, batch: int) -> Need:
        """Return noise that `sample` consumes."""

    @abstractmethod
    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return the reparameterised draw [..., width]."""

    @abstractmethod
    def center(self, parameters: Tensor) -> Tensor:
        """Return the deterministic code [..., width] that stands for a posterior."""

    @abstractmethod
    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the log density of each leaf [..., leaves]; parameters and value broadcast against each other."""

    def coupling(self, parameters: Tensor, value: Tensor, leaves: Sequence[int]) -> Tensor:
        """Return what some leaves together add to the sum of their log densities [...]: 0 if they are independent."""
        return torch.zeros_like(value[..., 0])

    def sample_prior(self, prior: Tensor, noise: Tensor) -> Tensor:
        """Draw from the prior, whose leaves are independent even where those of a posterior are not."""
        return self.sample(prior, noise)

    @abstractmethod
    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        """Return KL(posterior || prior) of each leaf [..., leaves]: in closed form, or else at a draw."""

    def to_code(self, value: Tensor) -> Tensor:
        """Return what a decoder sees of a value, [..., width]."""
        return value

    def from_code(self, code: Tensor) -> Tensor:
        """Return the value of a code: the inverse of `to_code`."""
        return code

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        """Return codes [places, coordinates] through which a traversal moves one leaf."""
        return torch.linspace(-span, span, columns).unsqueeze(-1)

    @abstractmethod
    def standard(self, like: Tensor) -> Tensor:
        """Return parameters [1, parameters] of the standard prior."""

    def prior_of(self, posterior: Tensor) -> Tensor:
        """Return the prior that a posterior is compared with; most blocks have one for all."""
        return self.standard(posterior)

    def pairwise(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the log density of every value [..., i, width] under every posterior [..., j, :], [..., i, leaves, j].

        Components come last because estimators reduce over them, and a reduction over adjacent numbers is the fast one.
        """
        return self.log_density(parameters.unsqueeze(-3), value.unsqueeze(-2)).transpose(-1, -2)


@block("normal")
class Normal(Block):
    """Independent normal coordinates, standard normal prior; parameters are the mean and the log variance."""

    def __init__(self, *, size: int = 10) -> None:
        if size < 1:
            raise UsageError(f"A latent block needs at least 1 variable, not {size}.")
        self.width = self.leaves = size
        self.parameters = {"mean": size, "log_variance": size}

    def need(self, batch: int) -> Need:
        return Need("normal", (batch, self.width))

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return mean + sigma * noise."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        return mean + (0.5 * log_variance).exp() * noise

    def center(self, parameters: Tensor) -> Tensor:
        """Return the mean."""
        return parameters[..., : self.width]

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return -1/2 [log 2 pi + log sigma^2 + (value - mean)^2 / sigma^2]."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        return _log_normal(value - mean, log_variance)

    def pairwise(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the same density, laid out for the estimators from the start."""
        mean, log_variance = parameters.transpose(-1, -2).unsqueeze(-3).chunk(2, dim=-2)  # [..., 1, leaves, j]
        return _log_normal(value.unsqueeze(-1) - mean, log_variance)

    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        """Return 1/2 [s^2/t^2 + (m - n)^2/t^2 - 1 - log s^2/t^2] for N(m, s^2) against N(n, t^2)."""
        mean, log_variance = posterior.chunk(2, dim=-1)
        prior_mean, prior_log_variance = prior.chunk(2, dim=-1)
        log_ratio = log_variance - prior_log_variance
        distance = (mean - prior_mean).square() * (-prior_log_variance).exp()
        return 0.5 * (log_ratio.exp() + distance - 1 - log_ratio)

    def standard(self, like: Tensor) -> Tensor:
        return torch.zeros(1, self.parameter_count, dtype=like.dtype, device=like.device)


def _log_normal(distance: Tensor, log_variance: Tensor) -> Tensor:
    """Return the log density at a distance from the mean, standardised before it is squared."""
    standard = standardised(distance, log_variance)
    return torch.add(-0.5 * (log_variance + math.log(2 * math.pi)), standard.square(), alpha=-0.5)


def standardised(distance: Tensor, log_variance: Tensor) -> Tensor:
    """Return a distance in standard deviations.

    Its square, taken as distance^2 / sigma^2, is 0 times infinity in float32 once log sigma^2 falls below -88, and the
    square of this one below -177; the bound keeps even that finite.
    """
    return distance * (-0.5 * log_variance).clamp(max=80.0).exp()
