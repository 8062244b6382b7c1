"""What all objectives of several modalities share: reconstructions along routes, KLs along paths, and their weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.modalities import MultimodalDataset, masks
from unbraid.errors import UsageError, unknown
from unbraid.latents import Space
from unbraid.models.multimodal import MASKS, PATHS, SHARED, private
from unbraid.objectives.base import Context, Objective
from unbraid.objectives.schedules import ramp
from unbraid.types import Batch, Output, Terms, Weight

Value = tuple[Tensor, Weight]


class OfModalities(Objective):
    """Weights of the KLs and of the reconstructions by modality.

    `betas` and `weights` hold numbers for single modalities, as `m2:0.3`: of KL(s_m), where `beta_m` is that of the
    others, and of log p(x_m|c, s_m), where 1 is. All weights of KLs rise from 0 over the first `anneal` steps.
    """

    def __init__(
        self,
        *,
        beta_c: Weight = 1.0,
        beta_m: Weight = 1.0,
        betas: tuple[str, ...] = (),
        weights: tuple[str, ...] = (),
        anneal: int = 0,
    ) -> None:
        if anneal < 0:
            raise UsageError(f"anneal must be a number of steps, 0 or above, not {anneal}.")
        self.beta_c, self.beta_m, self.anneal = beta_c, beta_m, anneal
        self.betas: dict[str, Weight] = {**by_name("betas", betas)}
        self.weights = by_name("weights", weights)
        super().__init__(self.modal_terms)

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The objective's terms."""
        raise NotImplementedError

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Every weight must name a modality."""
        assert isinstance(dataset, MultimodalDataset)
        for name in (*self.betas, *self.weights):
            if name not in dataset.modalities:
                raise unknown("modality", name, dataset.modalities, of=dataset.name)
        for name in self.betas:
            if private(name) not in space.blocks:
                raise UsageError(
                    f"{name} has no latents of its own here, so that a weight of their KL changes nothing."
                )
        alone = len(space.blocks) == 1
        if alone and not isinstance(self.beta_m, Tensor) and self.beta_m != 1.0:
            raise UsageError(
                f"beta_m={self.beta_m:g} weighs latents of single modalities, and there are none; use s=…."
            )

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Which modalities are there, for the model."""
        return masks(batch.present)

    def weight(self, name: str) -> float:
        """Weight of a modality's reconstruction."""
        return self.weights.get(name, 1.0)

    def annealed(self, beta: Weight, context: Context) -> Weight:
        """The weight of a KL at this step."""
        return beta * ramp(context.step, self.anneal)

    def own(self, out: Output, context: Context, again: Mapping[str, Tensor] | None = None) -> dict[str, Value]:
        """Terms KL(q(s_m|x_m) || p(s_m)), 0 where x_m is missing, and as many more as a row says [member, rows]."""
        terms: dict[str, Value] = {}
        for name in context.likelihoods:
            if private(name) in context.space.blocks:
                kl = own_kl(out, context.space, private(name))
                beta = self.annealed(self.betas.get(name, self.beta_m), context)
                terms[f"kl_{private(name)}"] = (kl.mean(-1), beta)
                if again is not None:
                    terms[f"kl_{private(name)}_again"] = ((kl * again[name]).mean(-1), beta)
        return terms


def by_name(setting: str, given: Sequence[str]) -> dict[str, float]:
    """`("m1:2", "m2:0.3")` -> `{"m1": 2.0, "m2": 0.3}`."""
    made: dict[str, float] = {}
    for item in given:
        name, colon, number = (part.strip() for part in item.partition(":"))
        if name in made:
            raise UsageError(f"{setting} has two numbers for {name}; leave one out.")
        try:
            made[name] = float(number)
        except ValueError:
            colon = ""
        if not colon or not 0 <= made[name] < float("inf"):
            raise UsageError(f"{setting} holds numbers by modality, as {setting}=[m1:1,m2:0.3], not {item}.")
    return made


def nats(out: Output, batch: Batch, context: Context, suffix: str = "") -> dict[str, Tensor]:
    """-log p(x_m|c, s_m) [member, rows, routes] of each modality, 0 where it is missing; of this process's rows."""
    made = {}
    for name, likelihood in context.likelihoods.items():
        x, decoded = batch.x[name], out.decoded[name + suffix]
        there = None if batch.present is None else context.part(batch.present[name])
        if there is not None:  # what is missing could hold NaN, whose gradient would outlive a mask of the loss alone
            x = torch.where(there.view(*there.shape, *[1] * (x.ndim - 2)), x, 0.0)
        routes = decoded[""].shape[1] // x.shape[1]
        seen = x.unsqueeze(2).expand(-1, -1, routes, *x.shape[2:]).flatten(1, 2)
        loss = -likelihood.log_prob(decoded, seen, x.ndim - 2).unflatten(1, (-1, routes))
        made[name] = loss if there is None else torch.where(there.unsqueeze(-1), loss, 0.0)
    return made


def path_kl(out: Output, space: Space) -> Tensor:
    """KL(q(c|path) || p(c)) [member, rows, paths]; 0 for a path that looks at nothing."""
    prior = out.prior[SHARED].unsqueeze(-2)
    return space.blocks[SHARED].kl(out.posterior[PATHS], prior, out.sample[PATHS]).sum(-1)


def own_kl(out: Output, space: Space, name: str) -> Tensor:
    """KL(q(s_m|x_m) || p(s_m)) [member, rows] of a block."""
    return space.blocks[name].kl(out.posterior[name], out.prior[name], out.sample[name]).sum(-1)


def used_paths(out: Output) -> Tensor:
    """Whether paths look at anything [member, rows, paths], as numbers."""
    return out.posterior[MASKS].amax(-1)
