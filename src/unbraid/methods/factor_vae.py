r"""FactorVAE (kim2018): a penalty on the total correlation, whose density ratio a discriminator learns meanwhile.

    model          -E[log p(x|z)] + KL(q(z|x) || p(z)) + gamma E_q(z)[D(z)_joint - D(z)_shuffled]
    discriminator  -1/2 E_q(z)[log softmax D(z)_joint] - 1/2 E_qbar(z)[log softmax D(z)_shuffled]

Samples of qbar(z) = prod_d q(z_d) come from permuting each variable over the rows of the batch's second half. The
first half has the joint codes, so no row is on both sides. With a perfect discriminator the difference of its logits D
is log q(z) / qbar(z), whose mean under q is the total correlation; `beta-tcvae` with beta = gamma + 1 weighs the same
terms (chen2018).
"""

import torch
from torch import Tensor, nn

from unbraid.density.density_ratio import Discriminator, check_layers
from unbraid.latents import Space
from unbraid.noise import Need
from unbraid.objectives import density_ratio
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.types import Batch, Output, Player, Terms, Weight

ORDER = "order/codes"


@objective("factor-vae", reference="kim2018", trial={"width": 32, "depth": 2})
class FactorVAE(Objective):
    """FactorVAE: E[log p(x|z)] - KL(q(z|x) || p(z)) - gamma TC(z), TC by a discriminator's density ratio.

    The discriminator has `depth` layers of `width` (kim2018: 6 of 1000) and its own Adam at 1e-4 with betas .5 and .9.
    """

    def __init__(self, *, gamma: Weight = 35.0, width: int = 1000, depth: int = 6) -> None:
        check_layers(width, depth)
        self.gamma, self.width, self.depth = gamma, width, depth

    def players(self) -> list[Player]:
        return [
            *super().players(),
            density_ratio.make_discriminator_player("objective.discriminator.", self.discriminator_terms),
        ]

    def networks(self, space: Space) -> dict[str, nn.Module]:
        return {"discriminator": Discriminator(space.width, width=self.width, depth=self.depth)}

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """Return numbers whose order permutes the batch's second half, for each variable."""
        density_ratio.check_batch(batch, "factor-vae")
        return {ORDER: Need("uniform", (batch - batch // 2, space.leaves))}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        ratio = density_ratio.log_ratio(
            density_ratio.apply_discriminator(context, "discriminator", context.space.join(out.sample))
        )
        return elbo_terms(out, batch, context) | Terms({"tc/ratio": (ratio.mean(-1), self.gamma)})

    def discriminator_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Return the cross-entropy of joint codes, the first half, and shuffled ones, the second; log 2 is guessing."""
        codes = context.space.join(out.sample).detach()
        half = codes.shape[-2] // 2
        shuffled = permute_variables(codes[..., half:, :], context.noise[ORDER], context.space)
        both = torch.cat([codes[..., :half, :], shuffled], -2)
        logits = density_ratio.apply_discriminator(context, "discriminator", both).log_softmax(-1)
        log_likelihood = logits[..., :half, density_ratio.JOINT].mean(-1) + logits[
            ..., half:, density_ratio.SHUFFLED
        ].mean(-1)
        return Terms({"cross_entropy": (-0.5 * log_likelihood, 1.0)})


def permute_variables(codes: Tensor, noise: Tensor, space: Space) -> Tensor:
    """Permute each variable of codes [..., rows, width] in the order of its noise [..., rows, leaves].

    The coordinates of one variable (the probabilities of a category) stay together.
    """
    order = noise.argsort(dim=-2, stable=True)
    blocks = list(space.blocks.values())
    parts = zip(blocks, order.split([block.leaves for block in blocks], -1), strict=True)
    places = [part.repeat_interleave(block.width // block.leaves, -1) for block, part in parts]
    return codes.gather(-2, torch.cat(places, -1))
