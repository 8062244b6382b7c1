r"""MoPoE-VAE (sutter2021): all modalities from the product of experts of every subset of them, on average.

    maximise  mean_S [sum_{m in A} L(x_m; S) - K(S)] - sum_{m in A} beta_m KL(q(s_m|x_m) || p(s_m))
    L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m),    K(S) = beta_c KL(q(c|x_S) || p(c))

over all subsets S of A, the modalities of a row. q(c|x_S) is the product of the experts of S. `draws` random subsets
per row estimate the mean; `draws=none` takes all 2^|A| - 1.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.latents.fusion import ExpertMixture, mixture_of_products, subsets
from unbraid.models.base import model
from unbraid.models.multimodal import SUBSET_NOISE, ModalityPosteriors, MultimodalModel, draw_subsets
from unbraid.noise import Need
from unbraid.objectives.base import Context, objective
from unbraid.objectives.multimodal import LATER, TRIAL_PAIRS, MultimodalObjective, Value
from unbraid.types import Batch, Noise, Output, Terms

TRIAL = {**TRIAL_PAIRS, "s": 0}


@model("multimodal-subsets", reference="sutter2021")
class EverySubsetModel(MultimodalModel):
    """A model whose subsets are all of a row's modalities, or random ones.

    Estimates of likelihoods propose c from the mixture of the subsets' products. Elsewhere q(c|x_S) is the product of
    the given modalities, as in sutter2021's evaluations.
    """

    def __init__(self, *parts: Any, draws: int | None = None, **shared: Any) -> None:
        super().__init__(*parts, **shared)
        self.draws = draws

    @classmethod
    def check(cls, space: Space, settings: Mapping[str, Any]) -> None:
        draws = settings["draws"]
        if draws is not None and draws < 1:
            raise UsageError(f"draws must be at least 1, or none for every subset, not {draws}.")

    def proposal(self, posteriors: ModalityPosteriors) -> ExpertMixture:
        return mixture_of_products(*posteriors.experts, posteriors.present, self.prior_expert)

    @property
    def subset_count(self) -> int:
        return 2 ** len(self.modalities) - 1 if self.draws is None else self.draws

    def needs(self, batch: int) -> dict[str, Need]:
        random = {} if self.draws is None else {SUBSET_NOISE: Need("uniform", (batch, self.draws))}
        return {**super().needs(batch), **random}

    def choose_subsets(self, present: Tensor, noise: Noise) -> Tensor:
        """Return the subsets; a subset that a row lacks a part of is empty."""
        every = present.unsqueeze(-2)
        if self.draws is not None:
            return draw_subsets(every.expand(-1, self.draws, -1), noise[SUBSET_NOISE])
        table = subsets(len(self.modalities), present.device)
        return table & (every | ~table).all(-1, keepdim=True)


@objective(
    "mopoe", model="multimodal-subsets", reference="sutter2021", defaults={"c": 10, "s": 0}, trial=TRIAL, later=LATER
)
class MoPoE(MultimodalObjective):
    """MoPoE-VAE: all modalities from the product of experts of every subset of them, on average."""

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        used = self.used_subsets(out)
        share = used / used.sum(-1, keepdim=True).clamp(min=1.0)  # [member, rows, subsets]
        terms: dict[str, Value] = {
            f"reconstruction_{name}": ((loss * share).sum(-1).mean(-1), self.weight(name))
            for name, loss in self.reconstruction_losses(out.decoded, batch, context).items()
        }
        kl = (self.subset_kls(out, context.space) * share).sum(-1).mean(-1)
        terms["kl_c"] = (kl, self.anneal_weight(self.beta_c, context))
        return Terms({**terms, **self.private_kls(out, context)})
