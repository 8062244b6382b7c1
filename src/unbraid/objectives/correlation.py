r"""FactorVAE (kim2018): total correlation by a density ratio, from a discriminator that is trained at the same time.

    model          -E[log p(x|z)] + KL(q(z|x) || p(z)) + gamma E_q(z)[D(z)_joint - D(z)_shuffled]
    discriminator  -1/2 E_q(z)[log softmax D(z)_joint] - 1/2 E_qbar(z)[log softmax D(z)_shuffled]

qbar(z) = prod_d q(z_d) is sampled by permuting each variable over rows. These rows are the second half of the batch,
and the joint codes that they are told from are the first half, so no row stands on both sides. With a perfect
discriminator the difference of its logits is log q(z) / qbar(z), whose mean under q is TC; `beta-tcvae` with
beta = gamma + 1 weighs the same terms (chen2018).
"""

import torch
from torch import Tensor, nn

from unbraid.density.density_ratio import Discriminator, refuse_no_layers
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.noise import Need
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.types import Batch, Output, Player, Terms, Weight

ORDER = "order/codes"
SMALLEST_BATCH = 4
JOINT, SHUFFLED = 0, 1


@objective("factor-vae", year=2018, reference="kim2018", trial={"width": 32, "depth": 2})
class FactorVAE(Objective):
    """FactorVAE: E[log p(x|z)] - KL(q(z|x) || p(z)) - gamma TC(z), TC by a discriminator's density ratio.

    The discriminator has `depth` layers of `width` (kim2018: 6 of 1000) and moves by an Adam of its own, at 1e-4 with
    betas .5 and .9, whatever the model's rate is.
    """

    def __init__(self, *, gamma: Weight = 35.0, width: int = 1000, depth: int = 6) -> None:
        refuse_no_layers(width, depth)
        self.gamma, self.width, self.depth = gamma, width, depth
        super().__init__(self.model_terms)

    def players(self) -> list[Player]:
        """The model, which lowers the ratio with the discriminator as it is, and then the discriminator."""
        settings = {"lr": 1e-4, "betas": (0.5, 0.9)}
        return [
            Player("model", ("model.",), self.model_terms),
            Player("discriminator", ("objective.discriminator.",), self.discriminator_terms, optimizer=settings),
        ]

    def networks(self, space: Space) -> dict[str, nn.Module]:
        """The discriminator of codes."""
        return {"discriminator": Discriminator(space.width, width=self.width, depth=self.depth)}

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """For each variable, numbers whose order is a permutation of the batch's second half."""
        if batch < SMALLEST_BATCH:
            raise UsageError(f"factor-vae permutes half of a batch: it needs {SMALLEST_BATCH} rows, not {batch}.")
        return {ORDER: Need("uniform", (batch - batch // 2, space.leaves))}

    def model_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound's terms and the total correlation, over the whole batch."""
        logits = _logits(context, context.space.join(out.sample))
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space), 1.0),
                "tc/ratio": ((logits[..., JOINT] - logits[..., SHUFFLED]).mean(-1), self.gamma),
            }
        )

    def discriminator_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Cross-entropy of telling the first half's codes from the second half's, shuffled; log 2 is pure guessing."""
        codes = context.space.join(out.sample).detach()
        half = codes.shape[-2] // 2
        apart = permuted(codes[..., half:, :], context.noise[ORDER], context.space)
        logits = _logits(context, torch.cat([codes[..., :half, :], apart], -2)).log_softmax(-1)
        joint, shuffled = logits[..., :half, JOINT].mean(-1), logits[..., half:, SHUFFLED].mean(-1)
        return Terms({"cross_entropy": (-0.5 * (joint + shuffled), 1.0)})


def permuted(codes: Tensor, noise: Tensor, space: Space) -> Tensor:
    """Codes [..., rows, width] with each variable in an order of its own, that of its noise [..., rows, leaves].

    The coordinates of one variable (the probabilities of a category) stay together.
    """
    order = noise.argsort(dim=-2, stable=True)
    blocks = list(space.blocks.values())
    parts = zip(blocks, order.split([block.leaves for block in blocks], -1), strict=True)
    places = [part.repeat_interleave(block.width // block.leaves, -1) for block, part in parts]
    return codes.gather(-2, torch.cat(places, -1))


def _logits(context: Context, codes: Tensor) -> Tensor:
    """Whatever the networks compute in, densities are as precise as the codes."""
    return context.apply("discriminator", codes).to(codes.dtype)
