"""Latent blocks: families of distributions for posteriors and priors.

A block holds no tensors. Its parameters travel as one flat tensor [..., batch, parameters], so that a whole model is a
tensor function. A *leaf* is the smallest variable in a decomposition of the KL: one coordinate of a Normal block, one
whole categorical variable of a Concrete block.
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

    Densities are densities of *values*. The decoder sees the *code* of a value; for most blocks they are the same.
    """

    parameters: dict[str, int]  # names and widths of an encoder's outputs, in order
    width: int  # coordinates of a code
    leaves: int
    closed_form = True  # the KL needs no draw
    has_density = True  # False if a posterior is a point
    discrete = False  # variables are classes
    coupled = False  # the leaves of one posterior depend on each other
    extra_kl = 0.0  # KL(posterior || prior) minus the sum over leaves, if they are coupled

    @property
    def parameter_count(self) -> int:
        return sum(self.parameters.values())

    def needs(self, name: str, batch: int) -> dict[str, Need]:
        """Return the noise of one step, by name; `sample` receives the one called `name`."""
        return {name: self.need(batch)}

    def complete(self, parameters: Tensor, step: Tensor | None) -> Tensor:
        """Turn an encoder's output into the flat parameters of a posterior; `step` is None outside training."""
        return parameters

    @abstractmethod
    def need(self, batch: int) -> Need:
        """Return the shape and kind of the noise of `sample`."""

    @abstractmethod
    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Draw a value [..., width], reparameterised."""

    @abstractmethod
    def center(self, parameters: Tensor) -> Tensor:
        """Return the deterministic code [..., width] of a posterior, e.g. its mean."""

    @abstractmethod
    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the log density of each leaf [..., leaves]; parameters and value broadcast against each other."""

    def coupling(self, parameters: Tensor, value: Tensor, leaves: Sequence[int]) -> Tensor:
        """Return the joint log density of some leaves minus the sum of theirs [...]; 0 if they are independent."""
        return torch.zeros_like(value[..., 0])

    def sample_prior(self, prior: Tensor, noise: Tensor) -> Tensor:
        """Draw from the prior. Its leaves are independent, also if those of a posterior are coupled."""
        return self.sample(prior, noise)

    @abstractmethod
    def kl(self, posterior: Tensor, prior: Tensor, value: Tensor) -> Tensor:
        """Return KL(posterior || prior) of each leaf [..., leaves], in closed form or at the draw `value`."""

    def to_code(self, value: Tensor) -> Tensor:
        """Return the code [..., width] of a value."""
        return value

    def from_code(self, code: Tensor) -> Tensor:
        """Return the value of a code: the inverse of `to_code`."""
        return code

    def traversal_codes(self, columns: int, span: float) -> Tensor:
        """Return the codes [steps, coordinates] of one leaf in a traversal."""
        return torch.linspace(-span, span, columns).unsqueeze(-1)

    @abstractmethod
    def standard(self, like: Tensor) -> Tensor:
        """Return parameters [1, parameters] of the standard prior."""

    def prior_of(self, posterior: Tensor) -> Tensor:
        """Return the prior in KL(posterior || prior); in most blocks it does not depend on the posterior."""
        return self.standard(posterior)

    def pairwise(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return the log density of every value [..., i, width] under every posterior [..., j, :], [..., i, leaves, j].

        Components come last because estimators reduce over them, and a reduction over adjacent numbers is the fast one.
        """
        return self.log_density(parameters.unsqueeze(-3), value.unsqueeze(-2)).transpose(-1, -2)

    def multiply_pairs(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return what `pairwise` does, by a matrix product in float64 if the family has one, with other rounding."""
        return self.pairwise(parameters, value)

    @property
    def numbers_per_pair(self) -> int:
        """The float32 numbers that `multiply_pairs` holds at once for every pair of a value and a posterior."""
        return self.width


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
        mean, log_variance = parameters.chunk(2, dim=-1)
        return mean + (0.5 * log_variance).exp() * noise

    def center(self, parameters: Tensor) -> Tensor:
        return parameters[..., : self.width]

    def log_density(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Return -1/2 [log 2 pi + log sigma^2 + (value - mean)^2 / sigma^2]."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        return _log_normal(value - mean, log_variance)

    def pairwise(self, parameters: Tensor, value: Tensor) -> Tensor:
        # the memory layout of the estimators from the start, without a transpose
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
    standard = standardise(distance, log_variance)
    return torch.add(-0.5 * (log_variance + math.log(2 * math.pi)), standard.square(), alpha=-0.5)


def standardise(distance: Tensor, log_variance: Tensor) -> Tensor:
    """Return distance / sigma, to be squared afterwards.

    In float32, distance^2 / sigma^2 is 0 times infinity for log sigma^2 below -88. The square of this quotient is
    finite down to -177, and the bound keeps it finite below.
    """
    return distance * (-0.5 * log_variance).clamp(max=80.0).exp()
