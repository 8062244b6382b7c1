r"""MMVAE (shi2019): the posterior of c is a mixture of the modalities' experts, each of which explains all modalities.

    maximise  sum_{m in A} 1/|A| E log 1/K sum_k w_k,   w_k = p(x_A, c_k) / q(c_k|x_A),   c_1 … c_K ~ q(c|x_m)

with A the modalities of a row and q(c|x_A) = mean_{m in A} q(c|x_m). Drawing from each expert in turn is stratified
sampling of the mixture. K = 1 is the ELBO; more `samples` K make it tighter (IWAE, burda2016). The encoders' gradient
gets noisier as K grows; `gradient=dreg` is a doubly reparameterised one (tucker2019). tucker2019 draws from q itself.
Here a draw comes from one component of q, and r_m(c) = q(c|x_m) / sum_A q(c|x_j) is the share of grad log q(c|x_A)
that can be reparameterised. With u_k = w_k / sum_k w_k, the encoders get, without bias,

    sum_k [u_k - u_k (1 - u_k) r_m] (d log w_k / d c_k) grad c_k - u_k (d r_m / d c_k) grad c_k
          - u_k sum_{j != m} r_j grad log q(c|x_j) at c = c_k

which for one modality (r_m = 1) is tucker2019's u_k^2. Each s_m has one draw for all k, and its KL in closed form.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.fusion import DiagonalNormal, ExpertMixture, mixture
from unbraid.models.base import model
from unbraid.models.multimodal import SHARED, Decoded, ModalityPosteriors, MultimodalModel, single_modalities
from unbraid.objectives.base import Context, objective
from unbraid.objectives.multimodal import LATER, TRIAL_PAIRS, MultimodalObjective
from unbraid.types import Batch, Noise, Output, Terms, Weight

TRIAL = {**TRIAL_PAIRS, "s": 0, "samples": 2, "gradient": "dreg"}
Gradient = Literal["reparameterised", "dreg"]


@model("multimodal-experts", reference="shi2019")
class ExpertsModel(MultimodalModel):
    """A model whose subsets are single modalities, `samples` times each; q(c|x_A) is the mixture of present experts."""

    whole_posterior = False

    def __init__(self, *parts: Any, samples: int = 1, gradient: Gradient = "reparameterised") -> None:
        super().__init__(*parts, prior_expert=False)
        self.samples, self.gradient = samples, gradient

    @property
    def subset_count(self) -> int:
        """Number of draws; the draws of one expert are neighbours."""
        return len(self.modalities) * self.samples

    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        return single_modalities(present).repeat_interleave(self.samples, -2)

    def fuse_as_mixture(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        return mixture(*posteriors.experts, posteriors.present)

    def fuse(self, posteriors: ModalityPosteriors) -> DiagonalNormal:
        return self.fuse_as_mixture(posteriors).moments()

    def decode_draws(self, c: Tensor, s: Mapping[str, Tensor]) -> tuple[Decoded, Decoded]:
        """Decode twice for doubly reparameterised gradients: with c detached, and with gradients through c only."""
        if self.gradient != "dreg":
            return super().decode_draws(c, s)
        frozen = self.decode_subsets(c, {name: value.detach() for name, value in s.items()}, frozen=True)
        return self.decode_subsets(c.detach(), s), frozen


@objective(
    "mmvae", model="multimodal-experts", reference="shi2019", defaults={"c": 10, "s": 0}, trial=TRIAL, later=LATER
)
class MMVAE(MultimodalObjective):
    """MMVAE: a mixture of experts, each of which explains all modalities; the ELBO, or IWAE with `samples`.

    `gradient=dreg` takes doubly reparameterised gradients, which decode everything twice.
    """

    def __init__(self, *, samples: int = 1, gradient: Gradient = "reparameterised", **shared: Any) -> None:
        if samples < 1:
            raise UsageError(f"samples must be at least 1, not {samples}.")
        super().__init__(**shared)
        self.samples, self.dreg = samples, gradient == "dreg"

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the bound as one term, which cannot be split; reconstructions and the KL are only logged."""
        present = self._by_expert(self.used_subsets(out))[..., 0]  # [member, rows, M]
        share = present / present.sum(-1, keepdim=True).clamp(min=1.0)
        losses, c = self.reconstruction_losses(out.decoded, batch, context), out.extra.draws
        posterior = self._posterior(out, present > 0)
        ratio = posterior.log_density(c) - log_prior(c, context)
        weights = self._log_weights(losses, ratio, context)
        bound = weights.logsumexp(-1) - math.log(self.samples)
        if self.dreg:
            held = (weights.softmax(-1).detach() * self._log_weights(losses, ratio.detach(), context)).sum(-1)
            frozen = self.reconstruction_losses(out.extra.frozen, batch, context)
            surrogate = held + self._encoder_surrogate(weights, frozen, c, posterior, context)
            bound = bound.detach() + surrogate - surrogate.detach()
        terms = {"bound": (-(share * bound).sum(-1).mean(-1), 1.0)}
        each = share.repeat_interleave(self.samples, -1) / self.samples
        logged = {f"reconstruction_{n}": ((each * loss).sum(-1).mean(-1).detach(), 0.0) for n, loss in losses.items()}
        logged["kl_c/sampled"] = ((each * ratio).sum(-1).mean(-1).detach(), 0.0)
        return Terms({**terms, **logged, **self.private_kls(out, context)})

    def _encoder_surrogate(
        self, weights: Tensor, losses: dict[str, Tensor], c: Tensor, posterior: ExpertMixture, context: Context
    ) -> Tensor:
        """Return numbers [member, rows, M] whose gradient is the encoders' doubly reparameterised one."""
        held = ExpertMixture(*(part.detach() for part in posterior))
        logs = held.log_components(c) + held.log_weight
        shares = self._by_expert((logs - logs.logsumexp(-1, keepdim=True)).exp(), -2)  # r, [..., M, K, M]
        own_expert = torch.eye(shares.shape[-1], dtype=c.dtype, device=c.device).unsqueeze(-2)  # [M, 1, M]
        r_m = (own_expert * shares).sum(-1)  # [..., M, K]
        beta = self._beta(3, context)
        log_w = self._log_weights(losses, held.log_density(c) - log_prior(c, context), context)
        u = weights.softmax(-1).detach()
        own = (u - beta * u * (1 - u) * r_m.detach()) * log_w - beta * u * r_m
        densities = self._by_expert(posterior.log_components(c.detach()), -2)
        return (own - beta * u * ((1 - own_expert) * shares.detach() * densities).sum(-1)).sum(-1)

    def _log_weights(self, losses: dict[str, Tensor], ratio: Tensor, context: Context) -> Tensor:
        """Return log w = log p(x_A|c) - beta_c [log q(c|x_A) - log p(c)], [member, rows, M, samples]."""
        total = -self._beta(2, context) * ratio
        for name, loss in losses.items():
            total = total - self.weight(name) * loss
        return self._by_expert(total)

    def _beta(self, dims: int, context: Context) -> Weight:
        """Return beta_c, shaped to broadcast against tensors with `dims` dimensions behind the members'."""
        beta = self.anneal_weight(self.beta_c, context)
        return beta.view(-1, *[1] * dims) if isinstance(beta, Tensor) else beta

    def _posterior(self, out: Output, present: Tensor) -> ExpertMixture:
        """Return q(c|x_A), with parameters [member, rows, 1, M, D]."""
        experts = self._by_expert(out.extra.parameters, -2)[..., 0, :].unsqueeze(-3)
        mean, log_variance = experts.chunk(2, -1)
        return mixture(mean, log_variance, present.unsqueeze(-2))

    def _by_expert(self, draws: Tensor, dim: int = -1) -> Tensor:
        """Split a dimension of M x samples into two."""
        return draws.unflatten(dim, (-1, self.samples))


def log_prior(c: Tensor, context: Context) -> Tensor:
    block = context.space.blocks[SHARED]
    return block.log_density(block.standard(c), c).sum(-1)
