r"""VAEs that learn from pairs with common factors, without labels (locatello2020, hosoya2019, bouchacourt2018).

A pair is a row x of the batch and a partner p with the same factors except some, which are drawn again (and may not
change). For a variable that is common to the pair, their average replaces both posteriors. With q~ for the result, and
means over all rows of all pairs,

    ada-gvae, ada-ml-vae   -E[log p(x|z)] + beta KL(q~(z|x) || p(z))                       (locatello2020, eq. 6)
    gvae, ml-vae           -E[log p(x|y, s)] + beta [KL(q~(y|x, p) || p(y)) / 2 + KL(q(s|x) || p(s))]

In the second line the first `shared` variables y are common to each pair, so their KL counts once for two rows. The
loss is half the negative bound on log p(x, p) (the group ELBO of bouchacourt2018 and hosoya2019 with groups of two). In
the first line those variables are common whose posteriors are close (locatello2020),

    delta_d = KL(q(z_d|x) || q(z_d|p)),    common where delta_d < tau = (max_d delta_d + min_d delta_d) / 2

If all distances are equal, nothing is common. With precisions w = 1 / sigma^2, N(m, s^2) and N(n, t^2) average to

    mean        mean (m + n) / 2, variance (s^2 + t^2) / 2                       GVAE (hosoya2019)
    product     mean (w_s m + w_t n) / (w_s + w_t), variance 1 / (w_s + w_t)     ML-VAE (bouchacourt2018)
    geometric   the same mean, variance 2 / (w_s + w_t)                          Ada-ML-VAE in disentanglement_lib

The product of two equal posteriors is narrower than either; their geometric mean equals them.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import model
from unbraid.models.vae import VAE
from unbraid.noise import Need
from unbraid.objectives.base import Context, Draw, Objective, check_normal, objective
from unbraid.objectives.decomposition import elbo_terms, reconstruction
from unbraid.types import Batch, Inputs, Noise, Output, Terms, Weight

Average = Literal["mean", "product", "geometric"]

GEOMETRIC = {"average": "geometric"}
PRODUCT = {"shared": 5, "average": "product"}
ORDER, COUNT, VALUES = "pairs/order", "pairs/count", "pairs/values"
"""Names of the numbers that choose the factors to draw again, how many, and their values."""


@model("paired-vae", reference="locatello2020")
class PairedVAE(VAE):
    """A VAE whose training rows are pairs x_0, p_0, x_1, p_1, …; elsewhere it encodes single rows, as any VAE.

    The first `shared` variables are common to a pair; None chooses those whose posteriors are close.
    """

    def __init__(self, *parts: Any, average: Average = "mean", shared: int | None = None) -> None:
        super().__init__(*parts)
        self.average: Average = average
        self.shared = shared

    def needs(self, batch: int) -> dict[str, Need]:
        return super().needs(2 * batch)

    def forward(self, inputs: Inputs, noise: Noise) -> Output:
        posterior = average_pairs(self.encode(inputs, noise), self.space, self.average, self.shared)
        return self.sample_and_decode(posterior, noise)


def average_pairs(
    posterior: Mapping[str, Tensor], space: Space, average: Average, shared: int | None
) -> dict[str, Tensor]:
    """Average Normal posteriors [..., 2 pairs, parameters] within pairs, for the variables that are common."""
    pairs = {name: flat.unflatten(-2, (-1, 2)) for name, flat in posterior.items()}
    first, second = ({name: flat.select(-2, side) for name, flat in pairs.items()} for side in (0, 1))
    if shared is None:
        common = below_middle(torch.cat([b.kl(first[n], second[n], first[n]) for n, b in space.blocks.items()], -1))
    else:
        like = next(iter(first.values()))
        common = (torch.arange(space.leaves, device=like.device) < shared).expand(*like.shape[:-1], -1)
    parts = common.split([block.leaves for block in space.blocks.values()], -1)
    averaged = {}
    for (name, pair), part in zip(pairs.items(), parts, strict=True):
        both = _average(first[name], second[name], average).unsqueeze(-2)
        averaged[name] = torch.where(torch.cat([part, part], -1).unsqueeze(-2), both, pair).flatten(-3, -2)
    return averaged


def below_middle(distance: Tensor) -> Tensor:
    """Return which of the distances [..., d] lie below the middle between the smallest and the largest."""
    return distance < (distance.amax(-1, keepdim=True) + distance.amin(-1, keepdim=True)) / 2


def _average(first: Tensor, second: Tensor, average: Average) -> Tensor:
    """Return the mean and log variance of the average of two Normals."""
    m, log_s = first.chunk(2, -1)
    n, log_t = second.chunk(2, -1)
    if average == "mean":
        return torch.cat([(m + n) / 2, torch.logaddexp(log_s, log_t) - math.log(2)], -1)
    share = (log_t - log_s).sigmoid()  # w_s / (w_s + w_t)
    log_variance = -torch.logaddexp(-log_s, -log_t)
    if average == "geometric":
        log_variance = log_variance + math.log(2)
    return torch.cat([n + share * (m - n), log_variance], -1)


class PairedObjective(Objective):
    """A bound on pairs: each row of a batch is followed by its partner.

    Each partner has `differing` new factors; none draws a number from 1 to all but one. `factors` names the factors
    that pairs share, if they are not random.
    """

    factors: tuple[str, ...] = ()

    def __init__(self, *, beta: Weight = 1.0, differing: int | None = 1) -> None:
        self.beta, self.differing = beta, differing
        for name in (ORDER, COUNT, VALUES):
            noise.hash_name(name)  # before a step that draws them is compiled

    def check(self, dataset: FactorDataset, space: Space) -> None:
        if not dataset.is_grid:
            raise UsageError(f"Partners are looked up in a complete grid of factors, and {dataset.name} is none.")
        check_normal(space, "Posteriors of a pair are averaged")
        varying = dataset.varying_factors
        if len(varying) < 2:
            raise UsageError(f"Pairs need 2 factors that vary, one to share, one to change; {dataset.name} has fewer.")
        if self.factors:
            named = {dataset.factor_position(name) for name in self.factors}
            if not 0 < len(named & set(varying)) < len(varying):
                raise UsageError(f"factors must name some, but not all, of the varying factors of {dataset.name}.")
        elif self.differing is not None and not 0 < self.differing < len(varying):
            allowed = f"from 1 to {len(varying) - 1} on {dataset.name}, or none for a random number"
            raise UsageError(f"differing must be {allowed}, not {self.differing}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        if not torch.equal(rows, torch.arange(len(dataset), device=rows.device)):
            raise UsageError("Partners come from the whole grid, so no rows can be held out: use split=none.")

    def choose_rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Return each row of the batch and then its partner [member, 2 batch]."""
        partners = draw_partners(index, dataset, draw, self.differing, self.factors)
        return torch.stack([index, partners], -1).flatten(-2)

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        return elbo_terms(out, batch, context, self.beta)


@objective("ada-gvae", model="paired-vae", fixed=("shared",), reference="locatello2020")
class AdaGVAE(PairedObjective):
    """Ada-GVAE: beta-VAE on pairs that finds the latents which a pair shares, and averages means and variances."""


@objective("ada-ml-vae", model="paired-vae", fixed=("shared",), reference="locatello2020", defaults=GEOMETRIC)
class AdaMLVAE(PairedObjective):
    """Ada-ML-VAE: Ada-GVAE with the product of the two posteriors to the power 1/2 as the average."""


class GroupObjective(PairedObjective):
    """A bound on pairs that share the first `shared` latents and the named `factors`."""

    def __init__(self, *, shared: int = 5, factors: tuple[str, ...] = (), **others: Any) -> None:
        super().__init__(**others)
        self.shared, self.factors = shared, factors

    def check(self, dataset: FactorDataset, space: Space) -> None:
        super().check(dataset, space)
        if not 0 < self.shared < space.leaves:
            raise UsageError(f"shared must be 1 to {space.leaves - 1} of {space.leaves} latents, not {self.shared}.")

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return half the bound of each pair; shared variables have one KL for both rows."""
        kl = context.space.kl(out.posterior, out.prior, out.sample).mean(-2)  # [member, leaves]
        terms = {
            "reconstruction": (reconstruction(out, batch, context), 1.0),
            "kl_shared": (kl[..., : self.shared].sum(-1) / 2, self.beta),
            "kl_private": (kl[..., self.shared :].sum(-1), self.beta),
        }
        return Terms(terms)


@objective("gvae", model="paired-vae", reference="hosoya2019", defaults={"shared": 5}, trial={"shared": 2})
class GVAE(GroupObjective):
    """GVAE: pairs share `factors` of the data and the first `shared` latents, whose means and variances are averaged.

    Without `factors`, partners share all but `differing` random factors, as in `ada-gvae`. Then no factor is shared by
    all pairs for the shared latents to learn, so name the factors if you know them.
    """


@objective("ml-vae", model="paired-vae", reference="bouchacourt2018", defaults=PRODUCT, trial={"shared": 2})
class MLVAE(GroupObjective):
    """ML-VAE: pairs share `factors` of the data and the first `shared` latents, by the product of their posteriors."""


def draw_partners(
    index: Tensor, dataset: FactorDataset, draw: Draw, differing: int | None, factors: tuple[str, ...] = ()
) -> Tensor:
    """Draw a partner for each row [member, batch] of a grid; it keeps the named factors, or all but `differing`."""
    varying, batch = dataset.varying_factors, index.shape[-1]
    fresh = draw(VALUES, (batch, len(varying)))
    changes = None if factors else _choose_factors(draw, batch, len(varying), differing)
    columns = list(dataset.values_of(index).unbind(-1))
    for place, k in enumerate(varying):
        factor = dataset.factors[k]
        value = (fresh[..., place] * factor.size).to(index.dtype).clamp(max=factor.size - 1)
        if changes is not None:
            columns[k] = torch.where(changes[..., place], value, columns[k])
        elif factor.name not in factors:
            columns[k] = value
    return dataset.index_of(torch.stack(columns, -1))


def _choose_factors(draw: Draw, batch: int, factors: int, differing: int | None) -> Tensor:
    """Choose the factors to draw again [member, batch, factors]: `differing` of them, or from 1 to all but one."""
    rank = draw(ORDER, (batch, factors)).argsort(-1).argsort(-1)
    if differing is not None:
        return rank < differing
    return rank < 1 + (draw(COUNT, (batch, 1)) * (factors - 1)).long().clamp(max=factors - 2)
