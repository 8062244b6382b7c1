r"""MMVAE (shi2019): the posterior of c is a mixture of the modalities' experts, and each of them has to explain it all.

    sum_{m in A} 1/|A| E log 1/K sum_k w_k,   w_k = p(x_A, c_k) / q(c_k|x_A),   c_1 … c_K ~ q(c|x_m)

with q(c|x_A) = mean_{m in A} q(c|x_m). Drawing from each expert in turn is stratified sampling of the mixture. K = 1 is
the ELBO; more draws make it tighter (IWAE, burda2016). Its gradient for the encoders gets noisier as K grows;
`gradient=dreg` has a doubly reparameterised one (tucker2019). That was made for draws from q itself, and these are from
one of its components, whose share r_m(c) = q(c|x_m) / sum_A q(c|x_j) says how much of grad log q(c|x_A) can be
reparameterised. With u_k = w_k / sum_k w_k, the encoders get, without bias,

    sum_k [u_k - u_k (1 - u_k) r_m] (d log w_k / d c_k) grad c_k - u_k (d r_m / d c_k) grad c_k
          - u_k sum_{j != m} r_j grad log q(c|x_j) at c = c_k

which for one modality (r_m = 1) is tucker2019's u_k^2. Each s_m has one draw for all k, and its KL in closed form.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.fusion import Mixture, mixture
from unbraid.models.multimodal import PATHS, SHARED
from unbraid.models.paths import FROZEN
from unbraid.objectives.base import Context, objective
from unbraid.objectives.modalities import OfModalities, nats, used_paths
from unbraid.objectives.multimodal import PAIRS
from unbraid.types import Batch, Output, Terms, Weight


@objective(
    "mmvae",
    model="multimodal-experts",
    year=2019,
    reference="shi2019",
    defaults={"c": 10, "s": 0},
    trial={**PAIRS, "s": 0, "samples": 2, "gradient": "dreg"},
)
class MMVAE(OfModalities):
    """MMVAE: a mixture of experts, each of which has to explain all modalities; the ELBO, or IWAE with `samples`.

    `gradient=dreg` takes doubly reparameterised gradients, which decode everything twice.
    """

    def __init__(
        self,
        *,
        samples: int = 1,
        gradient: Literal["reparameterised", "dreg"] = "reparameterised",
        **shared: Any,
    ) -> None:
        if samples < 1:
            raise UsageError(f"samples must be at least 1, not {samples}.")
        super().__init__(**shared)
        self.samples, self.dreg = samples, gradient == "dreg"

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound as one term, since its reconstructions do not stand apart; those are logged beside it."""
        there = context.part(used_paths(out)).unflatten(-1, (-1, self.samples))[..., 0]  # [member, rows, M]
        share = there / there.sum(-1, keepdim=True).clamp(min=1.0)
        losses = nats(out, batch, context)
        c, posterior = self._posterior(out, context)
        ratio = posterior.log_density(c) - log_prior(c, context)
        weights = self._weights(losses, ratio, context)
        bound = weights.logsumexp(-1) - math.log(self.samples)
        if self.dreg:
            held = (weights.softmax(-1).detach() * self._weights(losses, ratio.detach(), context)).sum(-1)
            surrogate = held + self._encoded(weights, nats(out, batch, context, FROZEN), c, posterior, context)
            bound = bound.detach() + surrogate - surrogate.detach()
        terms = {"bound": (-(share * bound).sum(-1).mean(-1), 1.0)}
        each = share.repeat_interleave(self.samples, -1) / self.samples
        logged = {f"reconstruction_{n}": ((each * loss).sum(-1).mean(-1).detach(), 0.0) for n, loss in losses.items()}
        logged["kl_c/sampled"] = ((each * ratio).sum(-1).mean(-1).detach(), 0.0)
        return Terms({**terms, **logged, **self.own(out, context)})

    def _encoded(
        self, weights: Tensor, losses: dict[str, Tensor], c: Tensor, posterior: Mixture, context: Context
    ) -> Tensor:
        """Something [member, rows, M] whose gradient for the encoders is the doubly reparameterised one."""
        still = Mixture(*(part.detach() for part in posterior))
        logs = still.log_components(c) + still.log_weight
        shares = (logs - logs.logsumexp(-1, keepdim=True)).exp().unflatten(-2, (-1, self.samples))  # [..., M, K, M]
        own_expert = torch.eye(shares.shape[-1], dtype=c.dtype, device=c.device).unsqueeze(-2)  # [M, 1, M]
        mine = (own_expert * shares).sum(-1)  # [..., M, K]
        beta = self._beta(3, context)
        moved = self._weights(losses, still.log_density(c) - log_prior(c, context), context)
        part = weights.softmax(-1).detach()
        own = (part - beta * part * (1 - part) * mine.detach()) * moved - beta * part * mine
        densities = posterior.log_components(c.detach()).unflatten(-2, (-1, self.samples))
        return (own - beta * part * ((1 - own_expert) * shares.detach() * densities).sum(-1)).sum(-1)

    def _weights(self, losses: dict[str, Tensor], ratio: Tensor, context: Context) -> Tensor:
        """log w = log p(x_A|c) - beta_c [log q(c|x_A) - log p(c)], [member, rows, M, samples]."""
        total = -self._beta(2, context) * ratio
        for name, loss in losses.items():
            total = total - self.weight(name) * loss
        return total.unflatten(-1, (-1, self.samples))

    def _beta(self, dims: int, context: Context) -> Weight:
        """beta_c for numbers with so many dimensions behind the members'."""
        beta = self.annealed(self.beta_c, context)
        return beta.view(-1, *[1] * dims) if isinstance(beta, Tensor) else beta

    def _posterior(self, out: Output, context: Context) -> tuple[Tensor, Mixture]:
        """Draws [member, rows, M x samples, D] and q(c|x_A) [member, rows, 1, M, D] of this process's rows."""
        along = context.part(out.posterior[PATHS]).unflatten(-2, (-1, self.samples))[..., 0, :].unsqueeze(-3)
        there = context.part(used_paths(out)).unflatten(-1, (-1, self.samples))[..., 0] > 0
        mean, log_variance = along.chunk(2, -1)
        return context.part(out.sample[PATHS]), mixture(mean, log_variance, there.unsqueeze(-2))


def log_prior(c: Tensor, context: Context) -> Tensor:
    """log p(c) of draws [..., D]."""
    block = context.space.blocks[SHARED]
    return block.log_density(block.standard(c), c).sum(-1)
