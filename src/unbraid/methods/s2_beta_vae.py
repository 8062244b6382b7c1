r"""S2-beta-VAE (locatello2020b): a beta-VAE with labels for a few of its rows.

    loss = -E[log p(x|z)] + beta KL(q(z|x) || p(z)) + gamma_sup E_labelled[sum_k H(v_k, sigmoid mu_k(x))]

H is the binary cross-entropy of the k-th factor v_k, its values scaled to [0, 1], and the k-th posterior mean mu_k:
each factor has its own latent, in order. Factors with a single value are left out. The expectation over labelled rows
is the sum over those of a batch, divided by their expected number: a batch without labels contributes 0, and gamma_sup
has the same meaning for any share of labelled rows. A label that is missing in the data (-1) contributes nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, Objective, check_normal, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.printable import pluralise
from unbraid.types import Batch, Output, Terms, Weight

LABEL_EPOCH = -2
"""Epoch of the permutation that chooses the labelled rows: a constant, so that all runs on the same data agree."""


@objective("s2-beta-vae", reference="locatello2020b", trial={"labels": 0.5})
class S2BetaVAE(Objective):
    """S2-beta-VAE: beta-VAE whose first posterior means learn the factors, on the few rows with `labels`.

    `labels` is a share of the rows up to 1, or a number of rows. The choice of rows only depends on the data.
    """

    labelled = True

    def __init__(self, *, beta: Weight = 4.0, gamma_sup: Weight = 10.0, labels: float = 0.01) -> None:
        self.beta, self.gamma_sup, self.labels = beta, gamma_sup, labels
        self.is_labelled = torch.empty(0)  # of each row of the data
        self.share = 1.0  # of labelled rows among the training rows
        self.spans: dict[int, int] = {}  # largest value of each factor, by its column

    def check(self, dataset: FactorDataset, space: Space) -> None:
        check_normal(space, "A factor is compared with a mean")
        factors = len(dataset.varying_factors)
        if not 0 < factors <= space.leaves:
            each = f"Each of {dataset.name}'s {pluralise(factors, 'factor')} needs its own latent"
            lacking = f"{each}; there {'is' if space.leaves == 1 else 'are'} {space.leaves}."
            raise UsageError(lacking if factors else f"{dataset.name} has no factor labels to learn from.")
        if not (0 < self.labels <= 1 or (1 < self.labels <= len(dataset) and float(self.labels).is_integer())):
            raise UsageError(f"labels must be a share from 0 to 1, or a number of rows, not {self.labels:g}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Choose the labelled rows among those to train on."""
        self.spans = {k: dataset.sizes[k] - 1 for k in dataset.varying_factors}
        distinct = rows.unique()
        labelled = distinct[(dataset.values_of(distinct)[:, list(self.spans)] >= 0).any(-1)]
        if len(labelled) == 0:
            raise UsageError(f"None of the training rows of {dataset.name} has a label.")
        order = noise.permutation(noise.seed_tensor(0), LABEL_EPOCH, len(labelled))[0].to(rows.device)
        count = self.labels * len(distinct) if self.labels <= 1 else self.labels
        self.is_labelled = torch.zeros(len(dataset), dtype=torch.bool, device=rows.device)
        self.is_labelled[labelled[order[: max(1, round(count))]]] = True
        self.share = float(self.is_labelled[rows].double().mean())

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        assert batch.factors is not None
        means = context.space.center(out.posterior)[..., : len(self.spans)]
        values = torch.stack([batch.factors[..., k] for k in self.spans], -1)
        targets = torch.stack([values[..., i] / span for i, span in enumerate(self.spans.values())], -1)
        known = self.is_labelled[batch.index].unsqueeze(-1) & (values >= 0)
        supervised = cross_entropy(means, targets.to(means.dtype), known) / self.share
        return elbo_terms(out, batch, context, self.beta) | Terms({"supervised": (supervised, self.gamma_sup)})


def cross_entropy(logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Return the binary cross-entropy [...] of known targets [..., rows, k], summed over k, mean over all rows."""
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return torch.where(known, each, 0.0).sum(-1).mean(-1)
