r"""Disentanglement by latent quantisation and weight decay (hsu2023).

With the encoder's output c, the nearest learned values q, the draw z = q + c - sg[c] (sg stops a gradient), P numbers
in an observation and D latents,

    encoder, decoder   -E[log p(x|z)] + beta_commit P/D E|c - sg[q]|^2
    codebook            beta_quantise P/D E|sg[c] - q|^2

hsu2023 takes means over pixels and over latents where this library sums; P/D makes their weights mean the same here.
The two move by optimizers of their own: that of encoder and decoder (AdamW, loshchilov2019) pulls weights, not biases,
towards 0 at `weight_decay` times the learning rate; the codebook has no decay. Since no other loss reaches the codebook
and Adam does not see a loss's scale, beta_quantise hardly matters.
"""

import math

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Quantised, Space
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import reconstruction
from unbraid.types import Batch, Output, Player, Terms, Weight


@objective("qlae", model="qlae", year=2023, reference="hsu2023", defaults={"latents": "quantised"})
class QLAE(Objective):
    """QLAE: an autoencoder with few values per latent and strong weight decay, E[log p(x|z)] - beta_commit |c - q|^2.

    hsu2023 has twice as many latents as factors, of 10 values each (`z=10`, `latents.z.values=10`).
    """

    def __init__(self, *, beta_quantise: Weight = 0.01, beta_commit: Weight = 0.01, weight_decay: float = 0.1) -> None:
        if not weight_decay >= 0:
            raise UsageError(f"weight_decay must be at least 0, not {weight_decay}.")
        self.beta_quantise, self.beta_commit, self.weight_decay = beta_quantise, beta_commit, weight_decay
        super().__init__(self.model_terms)

    def players(self) -> list[Player]:
        """The networks, with weight decay, and the codebook, without."""
        networks = ("model.encoder.", "model.decoder.", "model.likelihood.")
        return [
            Player("model", networks, self.model_terms, optimizer={"weight_decay": self.weight_decay}),
            Player("codebook", ("model.codebooks.",), self.codebook_terms),
        ]

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Only quantised latents."""
        for name, block in space.blocks.items():
            if not isinstance(block, Quantised):
                raise UsageError(f"qlae trains quantised latents only (latents=quantised:10), and {name!r} is none.")

    def model_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Reconstruction, and the distance that the encoder keeps to its values."""
        pairs = [flat.chunk(2, -1) for flat in out.posterior.values()]
        distance = _sum([(continuous - nearest.detach()).square() for continuous, nearest in pairs])
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "commitment": (distance, self.beta_commit * _scale(batch, context.space)),
            }
        )

    def codebook_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The distance of the values to what is rounded to them."""
        distances = []
        for name, flat in out.posterior.items():
            continuous = flat.chunk(2, -1)[0].detach()
            distances.append((continuous - context.apply(f"model.codebooks.{name}", continuous)).square())
        return Terms({"quantisation": (_sum(distances), self.beta_quantise * _scale(batch, context.space))})


def _sum(parts: list[Tensor]) -> Tensor:
    """Summed over latents, mean over the batch [member]."""
    return sum((part.sum(-1).mean(-1) for part in parts[1:]), parts[0].sum(-1).mean(-1))


def _scale(batch: Batch, space: Space) -> float:
    """Numbers of an observation per latent."""
    return math.prod(batch.x["x"].shape[2:]) / space.leaves
