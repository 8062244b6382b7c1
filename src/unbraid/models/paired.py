r"""A VAE that sees pairs of observations, and knows or finds out which latent variables a pair has in common.

Rows come as x_0, p_0, x_1, p_1, …; all of them are encoded, and where a variable is common to a pair, both posteriors
are replaced by their average. Then each row has a draw of its own and is decoded, as in any VAE.

Which variables are common: the first `shared` ones (hosoya2019, bouchacourt2018), or, adaptively (locatello2020), those
whose posteriors are close, in the order of the pair:

    delta_d = KL(q(z_d|x) || q(z_d|p)),    common where delta_d < tau = (max_d delta_d + min_d delta_d) / 2

If all distances are equal, nothing is common. With precisions w = 1 / sigma^2, N(m, s^2) and N(n, t^2) average to

    mean        mean (m + n) / 2, variance (s^2 + t^2) / 2                       GVAE (hosoya2019)
    product     mean (w_s m + w_t n) / (w_s + w_t), variance 1 / (w_s + w_t)     ML-VAE (bouchacourt2018)
    geometric   the same mean, variance 2 / (w_s + w_t)                          Ada-ML-VAE in disentanglement_lib

The product of two equal posteriors is narrower than either; their geometric mean is what they are.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from unbraid.latents import Space
from unbraid.models.base import model
from unbraid.models.vae import VAE
from unbraid.networks import Likelihood
from unbraid.noise import Need
from unbraid.types import Noise, Output, Shape

Average = Literal["mean", "product", "geometric"]


@model("paired-vae", year=2020, reference="locatello2020")
class PairedVAE(VAE):
    """A VAE whose training rows are pairs; encoding for any other purpose looks at single rows, as in any VAE."""

    def __init__(
        self,
        space: Space,
        shape: Shape,
        encoder: nn.Module,
        decoder: nn.Module,
        likelihood: Likelihood,
        *,
        average: Average = "mean",
        shared: int | None = None,
    ) -> None:
        super().__init__(space, shape, encoder, decoder, likelihood)
        self.average: Average = average
        self.shared = shared

    def needs(self, batch: int) -> dict[str, Need]:
        """Noise for both rows of each of `batch` pairs."""
        return super().needs(2 * batch)

    def forward(self, x: Mapping[str, Tensor], noise: Noise) -> Output:
        """Encode, agree within pairs, sample, decode."""
        posterior = agreed(self.encode(x["x"], noise), self.space, self.average, self.shared)
        prior = self.prior_of(posterior)
        sample = self.space.sample(posterior, noise)
        return Output(posterior, prior, sample, {"x": self.decode(self.space.join(sample))})


def agreed(posterior: Mapping[str, Tensor], space: Space, average: Average, shared: int | None) -> dict[str, Tensor]:
    """Normal posteriors [..., 2 pairs, parameters] with both of a pair averaged in the variables that it shares."""
    pairs = {name: flat.unflatten(-2, (-1, 2)) for name, flat in posterior.items()}
    first, second = ({name: flat.select(-2, side) for name, flat in pairs.items()} for side in (0, 1))
    if shared is None:
        common = close(torch.cat([b.kl(first[n], second[n], first[n]) for n, b in space.blocks.items()], -1))
    else:
        common = _leading(first, space, shared)
    made = {}
    for (name, pair), own in zip(
        pairs.items(), common.split([b.leaves for b in space.blocks.values()], -1), strict=True
    ):
        both = _averaged(first[name], second[name], average).unsqueeze(-2)
        made[name] = torch.where(torch.cat([own, own], -1).unsqueeze(-2), both, pair).flatten(-3, -2)
    return made


def close(distance: Tensor) -> Tensor:
    """Which of the distances [..., d] lie below the middle between the smallest and the largest."""
    return distance < (distance.amax(-1, keepdim=True) + distance.amin(-1, keepdim=True)) / 2


def _leading(first: Mapping[str, Tensor], space: Space, shared: int) -> Tensor:
    like = next(iter(first.values()))
    return (torch.arange(space.leaves, device=like.device) < shared).expand(*like.shape[:-1], -1)


def _averaged(first: Tensor, second: Tensor, average: Average) -> Tensor:
    """Mean and log variance of the average."""
    m, log_s = first.chunk(2, -1)
    n, log_t = second.chunk(2, -1)
    if average == "mean":
        return torch.cat([(m + n) / 2, torch.logaddexp(log_s, log_t) - math.log(2)], -1)
    share = (log_t - log_s).sigmoid()  # w_s / (w_s + w_t)
    log_variance = -torch.logaddexp(-log_s, -log_t)
    if average == "geometric":
        log_variance = log_variance + math.log(2)
    return torch.cat([n + share * (m - n), log_variance], -1)
