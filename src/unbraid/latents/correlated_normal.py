r"""Normal posteriors whose noise is correlated (split2020): do axes matter because noise is independent along them?

    z = mean + sigma * S^(1/2) noise,    S = (1 - s) I + s 1 1^T,    Cov(z|x) = diag(sigma) S diag(sigma)

over the J variables of a block. A variable alone is N(mean, sigma^2) as ever; together they have a copula besides, the
same for each of their subsets of m variables, with e = (z - mean) / sigma,

    log q(z_1..z_m|x) = sum_i log q(z_i|x) - 1/2 log det S_m - s/(2(1-s)) [ sum e_i^2 - (sum e_i)^2 / (1 + (m-1) s) ]
    log det S_m = (m-1) log(1-s) + log(1 + (m-1) s)

and KL(q(z|x) || p(z)) to a factorised prior is that of independent noise plus the constant -1/2 log det S_J.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.blocks import Normal, block, standardised


@block("correlated-normal")
class CorrelatedNormal(Normal):
    """Normal coordinates whose noise has one correlation between all of them; the prior is standard normal."""

    coupled = True

    def __init__(self, *, size: int = 10, correlation: float = 0.9) -> None:
        super().__init__(size=size)
        if not 0 <= correlation < 1:
            raise UsageError(f"A correlation of noise must lie from 0 to below 1, not {correlation}.")
        self.correlation = correlation
        self.extra_kl = -0.5 * self._log_determinant(size)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Return mean + sigma S^(1/2) noise, with S^(1/2) = a I + b 1 1^T in closed form."""
        own = math.sqrt(1 - self.correlation)
        shared = (math.sqrt(1 + (self.width - 1) * self.correlation) - own) / self.width
        return super().sample(parameters, own * noise + shared * noise.sum(-1, keepdim=True))

    def sample_prior(self, prior: Tensor, noise: Tensor) -> Tensor:
        """Draw independent variables, as the prior's are."""
        return super().sample(prior, noise)

    def coupling(self, parameters: Tensor, value: Tensor, leaves: Sequence[int]) -> Tensor:
        """Return the log density of the copula of some variables."""
        mean, log_variance = parameters.chunk(2, dim=-1)
        chosen = list(leaves)
        apart = standardised(value[..., chosen] - mean[..., chosen], log_variance[..., chosen])
        s, count = self.correlation, len(chosen)
        square = apart.square().sum(-1) - apart.sum(-1).square() / (1 + (count - 1) * s)
        return -0.5 * (self._log_determinant(count) + s / (1 - s) * square)

    def _log_determinant(self, count: int) -> float:
        """Return the log determinant of the correlation matrix of `count` variables."""
        s = self.correlation
        return (count - 1) * math.log1p(-s) + math.log1p((count - 1) * s)
