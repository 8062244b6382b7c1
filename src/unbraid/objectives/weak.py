r"""Learning from pairs that share factors of variation, without a label (locatello2020, hosoya2019, bouchacourt2018).

A pair is a row of the batch and a partner with the same factors but for some, which are drawn anew (and may come out as
they were). The model averages the posteriors of what it takes to be common (`unbraid.models.paired`); with q~ for what
results, and means over all rows of all pairs,

    ada-gvae, ada-ml-vae   -E[log p(x|z)] + beta KL(q~(z|x) || p(z))                       (locatello2020, eq. 6)
    gvae, ml-vae           -E[log p(x|y, s)] + beta [KL(q~(y|x, p) || p(y)) / 2 + KL(q(s|x) || p(s))]

In the second line the first `shared` variables y belong to the pair, so their KL counts once for its two rows, and half
the negative bound on log p(x, p) is left (the group ELBO of bouchacourt2018 and hosoya2019 with groups of two).
"""

from typing import Any

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Normal, Space
from unbraid.objectives.base import Context, Draw, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.types import Batch, Output, Terms, Weight

ORDER, COUNT, VALUES = "pairs/order", "pairs/count", "pairs/values"


class Paired(Objective):
    """Sets a partner beside each row of a batch."""

    factors: tuple[str, ...] = ()

    def __init__(self, *, beta: Weight = 1.0, differing: int | None = 1) -> None:
        self.beta, self.differing = beta, differing
        super().__init__(self.pair_terms)
        for name in (ORDER, COUNT, VALUES):
            noise.stream(name)  # before a step that draws them is compiled

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Partners are looked up in a grid, and posteriors averaged as Normals."""
        if not dataset.is_grid:
            raise UsageError(f"Partners are looked up in a complete grid of factors, which {dataset.name} is not.")
        refuse_others(space, "Posteriors of a pair are averaged")
        moving = varying(dataset)
        if len(moving) < 2:
            raise UsageError(f"Pairs need 2 factors that vary, one to share, one to differ in; {dataset.name} has not.")
        if self.factors:
            named = {dataset.factor_position(name) for name in self.factors}
            if not 0 < len(named & set(moving)) < len(moving):
                raise UsageError(f"factors must name some, but not all, of what varies in {dataset.name}.")
        elif self.differing is not None and not 0 < self.differing < len(moving):
            raise UsageError(
                f"differing must be from 1 to {len(moving) - 1} of {dataset.name}'s factors (or none for a number "
                f"drawn for each pair), not {self.differing}."
            )

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """A partner may be any row, so none may be held out."""
        if not torch.equal(rows, torch.arange(len(dataset), device=rows.device)):
            raise UsageError("Partners are drawn from the whole grid, so no rows can be left out: use split=none.")

    def rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Each row of the batch and then its partner [member, 2 batch]."""
        return torch.stack([index, partners(index, dataset, draw, self.differing, self.factors)], -1).flatten(-2)

    def pair_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound of each row, under the averaged posterior."""
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space), self.beta),
            }
        )


@objective("ada-gvae", model="paired-vae", fixed=("shared",), year=2020, reference="locatello2020")
class AdaGVAE(Paired):
    """Ada-GVAE: beta-VAE on pairs, which finds out what a pair shares and averages its means and variances there.

    `differing` factors are drawn anew for each partner: that many, or for none, a number from 1 to all but one.
    """


@objective(
    "ada-ml-vae",
    model="paired-vae",
    fixed=("shared",),
    year=2020,
    reference="locatello2020",
    defaults={"average": "geometric"},
)
class AdaMLVAE(Paired):
    """Ada-ML-VAE: as Ada-GVAE, but what a pair shares is the product of its two posteriors, to the power 1/2."""


class Grouped(Paired):
    """Pairs that share the first variables."""

    def __init__(self, *, shared: int = 5, factors: tuple[str, ...] = (), **others: Any) -> None:
        super().__init__(**others)
        self.shared, self.factors = shared, factors

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Some variables must be shared, and some not."""
        super().suits(dataset, space)
        if not 0 < self.shared < space.leaves:
            raise UsageError(
                f"shared must be from 1 to {space.leaves - 1} of {space.leaves} latents, not {self.shared}."
            )

    def pair_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound of each pair, halved; what the pair shares has one KL for its two rows."""
        kl = context.space.kl(out.posterior, out.prior, out.sample).mean(-2)  # [member, leaves]
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl_shared": (kl[..., : self.shared].sum(-1) / 2, self.beta),
                "kl_private": (kl[..., self.shared :].sum(-1), self.beta),
            }
        )


@objective("gvae", model="paired-vae", year=2019, reference="hosoya2019", defaults={"shared": 5}, trial={"shared": 2})
class GVAE(Grouped):
    """GVAE: pairs share the first `shared` latents, whose means and variances are averaged, and `factors` of the data.

    Without names in `factors`, a partner has all factors in common but `differing` random ones, as in `ada-gvae`; the
    shared latents then learn nothing that is the same for all pairs, so name the factors where you know them.
    """


@objective(
    "ml-vae",
    model="paired-vae",
    year=2018,
    reference="bouchacourt2018",
    defaults={"shared": 5, "average": "product"},
    trial={"shared": 2},
)
class MLVAE(Grouped):
    """ML-VAE: pairs share the first `shared` latents, by the product of their posteriors, and `factors` of the data."""


def partners(
    index: Tensor, dataset: FactorDataset, draw: Draw, differing: int | None, factors: tuple[str, ...] = ()
) -> Tensor:
    """A partner for each row [member, batch] of a grid: all but the factors named, or `differing` others, anew."""
    moving, batch = varying(dataset), index.shape[-1]
    fresh = draw(VALUES, (batch, len(moving)))
    anew = None if factors else _chosen(draw, batch, len(moving), differing)
    columns = list(dataset.values_of(index).unbind(-1))
    for place, k in enumerate(moving):
        factor = dataset.factors[k]
        value = (fresh[..., place] * factor.size).to(index.dtype).clamp(max=factor.size - 1)
        if anew is not None:
            columns[k] = torch.where(anew[..., place], value, columns[k])
        elif factor.name not in factors:
            columns[k] = value
    return dataset.index_of(torch.stack(columns, -1))


def _chosen(draw: Draw, batch: int, factors: int, differing: int | None) -> Tensor:
    """Which factors are drawn anew [member, batch, factors]: `differing` of them, or from 1 to all but one."""
    rank = draw(ORDER, (batch, factors)).argsort(-1).argsort(-1)
    if differing is not None:
        return rank < differing
    return rank < 1 + (draw(COUNT, (batch, 1)) * (factors - 1)).long().clamp(max=factors - 2)


def varying(dataset: FactorDataset) -> list[int]:
    """Columns of the factors that have more than one value."""
    return [k for k, size in enumerate(dataset.sizes) if size > 1]


def refuse_others(space: Space, why: str) -> None:
    """A `UsageError` for latents that are not Normal."""
    for name, block in space.blocks.items():
        if not isinstance(block, Normal) or block.coupled:
            raise UsageError(
                f"{why}, so every latent block must be normal with independent coordinates, and {name!r} is not."
            )
