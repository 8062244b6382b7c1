r"""Normal posteriors whose noise is correlated (split2020): do axes matter because noise is independent along them?

    z = mean + sigma * S^(1/2) noise,    S = (1 - s) I + s 1 1^T,    Cov(z|x) = diag(sigma) S diag(sigma)

over the J variables of a block. Each variable is N(mean, sigma^2). The joint density of m of them has one more factor,
a copula; with e = (z - mean) / sigma,

    log q(z_1..z_m|x) = sum_i log q(z_i|x) - 1/2 log det S_m - s/(2(1-s)) [ sum e_i^2 - (sum e_i)^2 / (1 + (m-1) s) ]
    log det S_m = (m-1) log(1-s) + log(1 + (m-1) s)

and KL(q(z|x) || p(z)) to a factorised prior is the KL of independent noise plus the constant -1/2 log det S_J.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Normal, block, standardise
from unbraid.latents.positions import select


@block("correlated-normal")
class CorrelatedNormal(Normal):
    """Normal coordinates whose noise has the same correlation for every pair; the prior is standard normal."""

    coupled = True

    def __init__(self, *, size: int = 10, correlation: float = 0.9) -> None:
        super().__init__(size=size)
        if not 0 <= correlation < 1:
            raise UsageError(f"correlation must be at least 0 and below 1, not {correlation}.")
        self.correlation = correlation
        self.extra_kl = -0.5 * self._log_determinant(size)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return mean + sigma S^(1/2) noise, with S^(1/2) = a I + b 1 1^T in closed form."""
        a = math.sqrt(1 - self.correlation)
        b = (math.sqrt(1 + (self.width - 1) * self.correlation) - a) / self.width
        return super().sample(parameters, a * noise + b * noise.sum(-1, keepdim=True))

    def sample_prior(self, prior: Tensor, noise: Tensor) -> Tensor:
        return super().sample(prior, noise)

    def coupling(self, parameters: Tensor, value: Tensor, leaves: Sequence[int]) -> Tensor:
        """Return the log density of the copula of some leaves."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        e = standardise(select(value, leaves) - select(mean, leaves), select(log_variance, leaves))
        s, m = self.correlation, len(leaves)
        square = e.square().sum(-1) - e.sum(-1).square() / (1 + (m - 1) * s)
        return -0.5 * (self._log_determinant(m) + s / (1 - s) * square)

    def _log_determinant(self, count: int) -> float:
        s = self.correlation
        return (count - 1) * math.log1p(-s) + math.log1p((count - 1) * s)
