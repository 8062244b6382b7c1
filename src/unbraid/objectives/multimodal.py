r"""Shared parts of the bounds on log p(x_1, …, x_M) with a latent c of all modalities and a private s_m of each.

Let A be the modalities that a row has, and q(c|x_S) the fused experts of a subset S of A. The bounds sum

    L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m),    K(S) = beta_c KL(q(c|x_S) || p(c))

over subsets S and subtract beta_m KL(q(s_m|x_m) || p(s_m)). A missing modality adds nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError, unknown
from unbraid.latents import Space
from unbraid.models.multimodal import SHARED, Decoded, private_block
from unbraid.objectives.base import Context, Objective, ramp
from unbraid.types import Batch, Output, Weight

Value = tuple[Tensor, Weight]

TRIAL_PAIRS = {"data": "sprites-pairs", "data_size": 16, "data_orientations": 3, "data_positions": 3, "z": None, "c": 3}
"""Settings of a small run for tests."""


LATER = ("annealed",)
"""Settings that runs of older versions do not have."""


class MultimodalObjective(Objective):
    """An objective with weights of the KLs and reconstructions by modality.

    `betas` holds weights of KL(s_m) for single modalities, as `m2:0.3`; the others have `beta_m`. `weights` holds those
    of log p(x_m|c, s_m); the others have 1. The weights of KLs rise from 0 over the first `anneal` steps: all of them,
    or with `annealed=c` that of c alone, so that private latents are not free at first.
    """

    def __init__(
        self,
        *,
        beta_c: Weight = 1.0,
        beta_m: Weight = 1.0,
        betas: tuple[str, ...] = (),
        weights: tuple[str, ...] = (),
        anneal: int = 0,
        annealed: Literal["all", "c"] = "all",
    ) -> None:
        if anneal < 0:
            raise UsageError(f"anneal must be a number of steps, 0 or above, not {anneal}.")
        if annealed == "c" and not anneal:
            raise UsageError("annealed=c names the KL that rises; give the number of steps, too, as anneal=2000.")
        self.beta_c, self.beta_m, self.anneal, self.annealed = beta_c, beta_m, anneal, annealed
        self.betas: dict[str, Weight] = {**parse_numbers("betas", betas)}
        self.weights = parse_numbers("weights", weights)

    def check(self, dataset: FactorDataset, space: Space) -> None:
        for name in (*self.betas, *self.weights):
            if name not in dataset.modalities:
                raise unknown("modality", name, dataset.modalities, of=dataset.name)
        for name in self.betas:
            if private_block(name) not in space.blocks:
                raise UsageError(f"{name} has no latents of its own, so a weight of their KL changes nothing.")
        if len(space.blocks) == 1 and not isinstance(self.beta_m, Tensor) and self.beta_m != 1.0:
            raise UsageError(f"beta_m={self.beta_m:g} weighs latents of single modalities, and s=0 makes none.")

    def weight(self, name: str) -> float:
        """Return the weight of a modality's reconstruction."""
        return self.weights.get(name, 1.0)

    def anneal_weight(self, beta: Weight, context: Context) -> Weight:
        """Return the weight of a KL of c at this step."""
        return beta * ramp(context.step, self.anneal)

    def private_weight(self, beta: Weight, context: Context) -> Weight:
        """Return the weight of a KL of s_m at this step."""
        return beta if self.annealed == "c" else self.anneal_weight(beta, context)

    def private_kls(self, out: Output, context: Context, again: Mapping[str, Tensor] | None = None) -> dict[str, Value]:
        """Return terms KL(q(s_m|x_m) || p(s_m)), 0 where x_m is missing.

        `again` [member, rows] counts the additional bounds of a row that hold each modality, for this process's rows.
        """
        terms: dict[str, Value] = {}
        for name in context.likelihoods:
            block = private_block(name)
            if block in context.space.blocks:
                kl = context.space.blocks[block].kl(out.posterior[block], out.prior[block], out.sample[block]).sum(-1)
                beta = self.private_weight(self.betas.get(name, self.beta_m), context)
                terms[f"kl_{block}"] = (kl.mean(-1), beta)
                if again is not None:
                    terms[f"kl_{block}_again"] = ((context.part(kl) * again[name]).mean(-1), beta)
        return terms

    @staticmethod
    def reconstruction_losses(decoded: Decoded, batch: Batch, context: Context) -> dict[str, Tensor]:
        """Return -log p(x_m|c, s_m) [member, rows, subsets] of each modality, 0 where it is missing."""
        losses = {}
        for m, (name, likelihood) in enumerate(context.likelihoods.items()):
            x, parameters = batch.x[name], decoded[name]
            present = None if batch.present is None else context.part(batch.present)[..., m]
            if present is not None:  # missing rows could hold NaN, whose gradient would survive a mask of the loss
                x = torch.where(present.view(*present.shape, *[1] * (x.ndim - 2)), x, 0.0)
            subsets = parameters[""].shape[1] // x.shape[1]
            repeated = x.unsqueeze(2).expand(-1, -1, subsets, *x.shape[2:]).flatten(1, 2)
            loss = -likelihood.log_prob(parameters, repeated, x.ndim - 2).unflatten(1, (-1, subsets))
            losses[name] = loss if present is None else torch.where(present.unsqueeze(-1), loss, 0.0)
        return losses

    @staticmethod
    def subset_kls(out: Output, space: Space) -> Tensor:
        """Return KL(q(c|x_S) || p(c)) [member, rows, subsets]; 0 for the empty subset."""
        prior = out.prior[SHARED].unsqueeze(-2)
        return space.blocks[SHARED].kl(out.extra.parameters, prior, out.extra.draws).sum(-1)

    @staticmethod
    def used_subsets(out: Output) -> Tensor:
        """Return which subsets [member, rows, subsets] are not empty, as numbers."""
        return out.extra.masks.any(-1).to(out.extra.parameters.dtype)


def parse_numbers(setting: str, items: Sequence[str]) -> dict[str, float]:
    """Return `{"m1": 2.0, "m2": 0.3}` for `("m1:2", "m2:0.3")`."""
    numbers: dict[str, float] = {}
    for item in items:
        name, colon, number = (part.strip() for part in item.partition(":"))
        if name in numbers:
            raise UsageError(f"{setting} has two numbers for {name}; leave one out.")
        try:
            numbers[name] = float(number)
        except ValueError:
            colon = ""
        if not colon or not 0 <= numbers[name] < float("inf"):
            raise UsageError(f"{setting} holds numbers by modality, as {setting}=[m1:1,m2:0.3], not {item}.")
    return numbers
