r"""DMVAE (lee2021): all modalities from c of all of them, and again from c of each one, with private latents s_m.

    maximise  sum_S [sum_{m in A} L(x_m; S) - K(S) - sum_{m in A} beta_m KL(q(s_m|x_m) || p(s_m))]
    L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m),    K(S) = beta_c KL(q(c|x_S) || p(c))

over S = A, all modalities of a row, and S = {m} for each m in A. q(c|x_S) is the product of the experts of S.
"""

from typing import Any

import torch
from torch import Tensor

from unbraid.models.base import model
from unbraid.models.multimodal import MultimodalModel, single_modalities
from unbraid.objectives.base import Context, objective
from unbraid.objectives.multimodal import LATER, TRIAL_PAIRS, MultimodalObjective
from unbraid.types import Batch, Noise, Output, Terms

TRIAL = {**TRIAL_PAIRS, "s": 2}


@model("multimodal-cross", reference="lee2021")
class CrossModel(MultimodalModel):
    """A model whose subsets are all modalities of a row, and each single one."""

    @property
    def subset_count(self) -> int:
        return 1 + len(self.modalities)

    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        return torch.cat([present.unsqueeze(-2), single_modalities(present)], -2)


SETTINGS: dict[str, Any] = {"trial": TRIAL, "later": LATER}


@objective("dmvae", model="multimodal-cross", reference="lee2021", defaults={"c": 5, "s": 5}, **SETTINGS)
class DMVAE(MultimodalObjective):
    """DMVAE: all modalities from c of all of them, and again from c of each one, with private latents s_m."""

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        used, terms = self.used_subsets(out), {}  # [member, rows, 1 + M]
        for name, loss in self.reconstruction_losses(out.decoded, batch, context).items():
            terms[f"reconstruction_{name}"] = (loss[..., 0].mean(-1), self.weight(name))
            terms[f"cross_{name}"] = ((loss * used)[..., 1:].sum(-1).mean(-1), self.weight(name))
        kl, beta = self.subset_kls(out, context.space).mean(1), self.anneal_weight(self.beta_c, context)
        terms |= {"kl_c": (kl[..., 0], beta), "kl_c_unimodal": (kl[..., 1:].sum(-1), beta)}
        again = dict.fromkeys(context.likelihoods, used[..., 1:].sum(-1))
        return Terms({**terms, **self.private_kls(out, context, again)})
