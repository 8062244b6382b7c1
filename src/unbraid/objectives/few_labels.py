r"""A beta-VAE with labels for a few of its rows (locatello2020b).

    loss = -E[log p(x|z)] + beta KL(q(z|x) || p(z)) + gamma_sup E_labelled[sum_k H(v_k, sigmoid mu_k(x))]

H is the binary cross-entropy of the k-th factor, its values scaled to [0, 1], against the k-th mean: each factor has a
latent of its own, in order. Factors with one value only are left out. The expectation over rows with a label is that of
all rows, divided by the share that has one: a batch without any contributes 0, and gamma_sup means the same whatever
the share. A label that is missing in the data (-1) counts for nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.objectives.weak import refuse_others, varying
from unbraid.types import Batch, Output, Terms, Weight

DRAW = -2
"""The permutation that says which rows have labels: a constant, so that all runs on the same data know the same."""


@objective("s2-beta-vae", year=2020, reference="locatello2020b", trial={"labels": 0.5})
class S2BetaVAE(Objective):
    """S2-beta-VAE: beta-VAE whose first means are drawn towards the factors, on the few rows with `labels`.

    `labels` is a share of the rows up to 1, or else a number of rows. Which ones depends on the data alone.
    """

    labelled = True

    def __init__(self, *, beta: Weight = 4.0, gamma_sup: Weight = 10.0, labels: float = 0.01) -> None:
        self.beta, self.gamma_sup, self.labels = beta, gamma_sup, labels
        self.known = torch.empty(0)  # of each row of the data, whether it has labels
        self.share = 1.0  # of the rows to train on, how many have
        self.spans: dict[int, int] = {}  # by a factor's column, the largest of its values
        super().__init__(self.few_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """There must be labels, and a Normal variable for each factor."""
        refuse_others(space, "A factor is compared with a mean")
        factors = len(varying(dataset))
        if not 0 < factors <= space.leaves:
            raise UsageError(
                f"Each of {dataset.name}'s {factors} factors needs a latent of its own, and there are {space.leaves}."
                if factors
                else f"{dataset.name} has no factor labels to learn from."
            )
        if not (0 < self.labels <= 1 or (1 < self.labels <= len(dataset) and float(self.labels).is_integer())):
            raise UsageError(f"labels must be a share from 0 to 1, or a number of rows, not {self.labels:g}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Choose the rows that have labels, among those to train on."""
        self.spans = {k: dataset.sizes[k] - 1 for k in varying(dataset)}
        some = rows.unique()
        named = some[(dataset.values_of(some)[:, list(self.spans)] >= 0).any(-1)]
        if len(named) == 0:
            raise UsageError(f"None of the rows of {dataset.name} that are trained on has a label.")
        order = noise.permutation(noise.seed_tensor(0), DRAW, len(named))[0].to(rows.device)
        count = self.labels * len(some) if self.labels <= 1 else self.labels
        self.known = torch.zeros(len(dataset), dtype=torch.bool, device=rows.device)
        self.known[named[order[: max(1, round(count))]]] = True
        self.share = float(self.known[rows].double().mean())

    def few_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound, and the cross-entropy of the labels."""
        assert batch.factors is not None
        means = context.space.center(out.posterior)[..., : len(self.spans)]
        values = torch.stack([batch.factors[..., k] for k in self.spans], -1)
        targets = torch.stack([values[..., i] / span for i, span in enumerate(self.spans.values())], -1)
        there = self.known[batch.index].unsqueeze(-1) & (values >= 0)
        supervised = cross_entropy(means, targets.to(means.dtype), there) / self.share
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space), self.beta),
                "supervised": (supervised, self.gamma_sup),
            }
        )


def cross_entropy(logits: Tensor, targets: Tensor, there: Tensor) -> Tensor:
    """Binary cross-entropy [...] of those targets [..., rows, k] that are there: summed over k, mean over all rows."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return torch.where(there, each, 0.0).sum(-1).mean(-1)
