r"""Partitioned MVAE (daunhawer2019): each modality from its private s_m, and from c of all and of other modalities.

    maximise  sum_m [1/2 L(x_m; A) + 1/2 L(x_m; S_m)] - K(A) - sum_m beta_m KL(q(s_m|x_m) || p(s_m))
              - tc sum_m TC(c, s_m)                                                             (eq. 2, section 3.2)
    L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m),    K(S) = beta_c KL(q(c|x_S) || p(c))

with A all modalities of a row and S_m a random subset of A without m. q(c|x_S) is the product of the experts of S.
`reconstruct` chooses among the two L; `beta_subsets` also weighs the mean KL of the random subsets. Discriminators
learn TC(c, s_m) meanwhile (eq. 6 and table 3): each tells (c, s_m) of the batch's first half from those of the second
half with c permuted.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.density.density_ratio import Discriminator, check_layers
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import model
from unbraid.models.multimodal import SHARED, SUBSET_NOISE, MultimodalModel, draw_subsets, private_block
from unbraid.noise import Need
from unbraid.objectives import density_ratio
from unbraid.objectives.base import Context, objective
from unbraid.objectives.multimodal import LATER, TRIAL_PAIRS, MultimodalObjective, Value
from unbraid.types import Batch, Noise, Output, Player, Terms, Weight

ORDER = "order/shared"
TRIAL = {**TRIAL_PAIRS, "s": 2, "alone": "m2", "penalty": "ratio", "width": 16, "depth": 2}
SETTINGS = {"defaults": {"c": 5, "s": 5}, "trial": TRIAL, "later": LATER}
SHARES = {"both": (0.5, 0.5), "full": (1.0, 0.0), "subset": (0.0, 1.0)}
"""Weights of L(x_m; A) and L(x_m; S_m)."""


@model("multimodal-partitioned", reference="daunhawer2019")
class PartitionedModel(MultimodalModel):
    """A model whose subsets are all modalities of a row, and for each m a random one of the others, or all again."""

    @property
    def subset_count(self) -> int:
        return 1 + len(self.modalities)

    @property
    def decoded_from(self) -> list[list[int]]:
        return [[0, 1 + m] for m in range(len(self.modalities))]

    def needs(self, batch: int) -> dict[str, Need]:
        return {**super().needs(batch), SUBSET_NOISE: Need("uniform", (batch, len(self.modalities)))}

    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        every = present.unsqueeze(-2)
        others = every & ~torch.eye(present.shape[-1], dtype=torch.bool, device=present.device)
        drawn = draw_subsets(others, noise[SUBSET_NOISE])
        return torch.cat([every, torch.where(others.any(-1, keepdim=True), drawn, every)], -2)


@objective("partitioned-mvae", model="multimodal-partitioned", reference="daunhawer2019", **SETTINGS)
class PartitionedMVAE(MultimodalObjective):
    """Partitioned MVAE: each modality from its private s_m, and from c of all modalities and of others without it.

    `reconstruct` chooses the c; `beta_subsets` also weighs the mean KL of the random subsets. `alone` names a modality
    whose KL(s_m) has the weight `beta_alone` instead of `beta_m`. `penalty=ratio` adds `tc` TC(c, s_m), which
    discriminators with `depth` layers of `width` learn meanwhile.
    """

    def __init__(
        self,
        *,
        alone: str | None = None,
        beta_alone: Weight = 1.0,
        reconstruct: Literal["both", "full", "subset"] = "both",
        beta_subsets: Weight = 0.0,
        penalty: Literal["none", "ratio"] = "none",
        tc: Weight = 1.0,
        width: int = 1000,
        depth: int = 5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if alone in self.betas:
            raise UsageError(f"alone={alone} and betas both weigh KL(s_{alone}); leave one of them out.")
        if alone is not None:
            self.betas[alone] = beta_alone
        elif not isinstance(beta_alone, Tensor) and beta_alone != 1.0:
            raise UsageError(f"beta_alone={beta_alone} is the weight of one modality; name it, as alone=m2.")
        if penalty == "none" and (tc, width, depth) != (1.0, 1000, 5):
            raise UsageError("tc, width and depth belong to the penalty on TC; add penalty=ratio.")
        check_layers(width, depth)
        self.shares, self.beta_subsets, self.tc = SHARES[reconstruct], beta_subsets, tc
        self.penalised, self.width, self.depth = penalty == "ratio", width, depth

    def check(self, dataset: FactorDataset, space: Space) -> None:
        super().check(dataset, space)
        if self.penalised and len(space.blocks) < 2:
            raise UsageError("penalty=ratio penalises the dependence of c and s_m, so s must be at least 1.")

    def players(self) -> list[Player]:
        discriminators = density_ratio.make_discriminator_player("objective.discriminator_", self.discriminator_terms)
        return [*super().players(), discriminators] if self.penalised else super().players()

    def networks(self, space: Space) -> dict[str, nn.Module]:
        shared = space.blocks[SHARED].width
        return {
            f"discriminator_{name}": Discriminator(shared + block.width, width=self.width, depth=self.depth)
            for name, block in space.blocks.items()
            if self.penalised and name != SHARED
        }

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """Return numbers whose order permutes c in the batch's second half, for each s_m."""
        if not self.penalised:
            return {}
        density_ratio.check_batch(batch, "penalty=ratio")
        return {ORDER: Need("uniform", (batch - batch // 2, len(space.blocks) - 1))}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        terms: dict[str, Value] = {}
        for name, loss in self.reconstruction_losses(out.decoded, batch, context).items():
            parts = zip(("reconstruction", "cross"), loss.mean(1).unbind(-1), self.shares, strict=True)
            terms |= {f"{label}_{name}": (part, share * self.weight(name)) for label, part, share in parts}
        kl = self.subset_kls(out, context.space).mean(1)  # [member, subsets]
        terms["kl_c"] = (kl[..., 0], self.anneal_weight(self.beta_c, context))
        terms["kl_c_subsets"] = (kl[..., 1:].mean(-1), self.anneal_weight(self.beta_subsets, context))
        terms |= self.private_kls(out, context)
        for name, present in private_rows(out, batch, context).items() if self.penalised else ():
            codes = torch.cat([out.sample[SHARED], out.sample[name]], -1)
            ratio = density_ratio.log_ratio(density_ratio.apply_discriminator(context, f"discriminator_{name}", codes))
            terms[f"tc_{name}/ratio"] = (_mean(ratio, present), self.tc)
        return Terms(terms)

    def discriminator_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the cross-entropies of (c, s_m), the first half, and of those with c permuted, the second half.

        c is permuted among the rows that have x_m, since rows without it say nothing about s_m.
        """
        c, terms = out.sample[SHARED].detach(), {}
        half = c.shape[-2] // 2
        for place, (name, present) in enumerate(private_rows(out, batch, context).items()):
            order = _permute_among(present[..., half:], context.noise[ORDER][..., place]).unsqueeze(-1)
            permuted = c[..., half:, :].gather(-2, order.expand(*order.shape[:-1], c.shape[-1]))
            codes = torch.cat([torch.cat([c[..., :half, :], permuted], -2), out.sample[name].detach()], -1)
            logits = density_ratio.apply_discriminator(context, f"discriminator_{name}", codes).log_softmax(-1)
            joint = _mean(logits[..., :half, density_ratio.JOINT], present[..., :half])
            shuffled = _mean(logits[..., half:, density_ratio.SHUFFLED], present[..., half:])
            terms[f"cross_entropy_{name}"] = (-0.5 * (joint + shuffled), 1.0)
        return Terms(terms)


def private_rows(out: Output, batch: Batch, context: Context) -> dict[str, Tensor]:
    """Return for each private block the rows that have its modality [member, rows], as 0 or 1."""
    every = torch.ones_like(out.sample[SHARED][..., 0])
    return {
        private_block(name): every if batch.present is None else batch.present[..., m].to(every.dtype)
        for m, name in enumerate(context.likelihoods)
        if private_block(name) in context.space.blocks
    }


def _mean(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean [member] over present rows [member, rows], 0 without any."""
    return (values * present).sum(-1) / present.sum(-1).clamp(min=1.0)


def _permute_among(present: Tensor, uniform: Tensor) -> Tensor:
    """Return a permutation [..., rows] that permutes present rows among each other, and missing rows, too."""
    missing = 1 - present
    places = missing.argsort(dim=-1, stable=True)
    return torch.empty_like(places).scatter(-1, places, (uniform + missing).argsort(dim=-1, stable=True))
