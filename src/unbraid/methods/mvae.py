r"""MVAE (wu2018): the joint bound, the bounds of single modalities, and those of random subsets.

    maximise  sum_S [sum_{m in S} L(x_m; S) - K(S) - sum_{m in S} beta_m KL(q(s_m|x_m) || p(s_m))]
    L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m),    K(S) = beta_c KL(q(c|x_S) || p(c))

over S = A, all modalities of a row, S = {m} for each m, and `subsets` random S of at least two modalities, but not all.
q(c|x_S) is the product of the experts of S. wu2018 has no private latents s_m, and neither has the default, s=0.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import model
from unbraid.models.multimodal import SUBSET_NOISE, MultimodalModel, draw_proper_subsets, single_modalities
from unbraid.noise import Need
from unbraid.objectives.base import Context, objective
from unbraid.objectives.multimodal import LATER, TRIAL_PAIRS, MultimodalObjective
from unbraid.types import Batch, Noise, Output, Terms

TRIAL = {**TRIAL_PAIRS, "s": 0}


@model("multimodal-subsampled", reference="wu2018")
class SubsampledModel(MultimodalModel):
    """A model whose subsets are all modalities of a row, single ones, and random ones of at least two, but not all.

    The random subsets of a row with fewer than three modalities are empty.
    """

    def __init__(self, *parts: Any, unimodal: bool = True, subsets: int = 1, **shared: Any) -> None:
        super().__init__(*parts, **shared)
        self.unimodal = unimodal
        self.random_subsets = subsets if len(self.modalities) > 2 else 0  # of two modalities there is no other subset

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        if settings["subsets"] < 0:
            raise UsageError(f"subsets must be 0 or above, not {settings['subsets']}.")

    @property
    def subset_count(self) -> int:
        return 1 + len(self.modalities) * self.unimodal + self.random_subsets

    @property
    def decoded_from(self) -> list[list[int]]:
        """x_m is decoded from c of all modalities, of m, and of every random subset, since any may hold m."""
        random = list(range(self.subset_count - self.random_subsets, self.subset_count))
        return [[0, *([1 + m] if self.unimodal else []), *random] for m in range(len(self.modalities))]

    def needs(self, batch: int) -> dict[str, Need]:
        random = {SUBSET_NOISE: Need("uniform", (batch, self.random_subsets))} if self.random_subsets else {}
        return {**super().needs(batch), **random}

    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        chosen = [present.unsqueeze(-2)] + ([single_modalities(present)] if self.unimodal else [])
        if self.random_subsets:
            chosen.append(draw_proper_subsets(present, noise[SUBSET_NOISE]))
        return torch.cat(chosen, -2)


@objective(
    "mvae", model="multimodal-subsampled", reference="wu2018", defaults={"c": 10, "s": 0}, trial=TRIAL, later=LATER
)
class MVAE(MultimodalObjective):
    """MVAE: the joint bound, the bounds of single modalities, and those of random subsets, by products of experts.

    `subsets` random ones have at least two modalities, but not all; of two modalities there are none. `subsets=0` and
    `unimodal=false` leave the joint bound.
    """

    def __init__(self, *, unimodal: bool = True, **shared: Any) -> None:
        super().__init__(**shared)
        self.unimodal = unimodal

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        count, first, terms, again = len(context.likelihoods), 1 + self.unimodal, {}, {}
        masks = out.extra.masks.to(out.extra.draws.dtype)
        random = masks[..., 1 + count * self.unimodal :, :]  # [member, rows, random, M]
        for m, (name, loss) in enumerate(self.reconstruction_losses(out.decoded, batch, context).items()):
            parts = {"reconstruction": loss[..., 0].mean(-1)}
            if self.unimodal:
                parts["unimodal"] = loss[..., 1].mean(-1)
            if random.shape[-2]:
                parts["subsets"] = (loss[..., first:] * random[..., m]).sum(-1).mean(-1)
            terms |= {f"{label}_{name}": (part, self.weight(name)) for label, part in parts.items()}
            again[name] = self.unimodal + random[..., m].sum(-1)
        kl, beta = (
            self.subset_kls(out, context.space).mean(1),
            self.anneal_weight(self.beta_c, context),
        )  # [member, subsets]
        terms["kl_c"] = (kl[..., 0], beta)
        if kl.shape[-1] > 1:
            terms["kl_c_subsets"] = (kl[..., 1:].sum(-1), beta)
        return Terms({**terms, **self.private_kls(out, context, again)})
