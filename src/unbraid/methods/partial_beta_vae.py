r"""Both stages of msvae2020 at once (its ablation in appendix L): beta only weighs the first latents.

    loss = -E[log p(x|c, z)] + beta KL(q(c|x) || p(c)) + KL(q(z|x) || p(z))

c are the first `penalised` latent variables of an ordinary VAE, z the others.
"""

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import reconstruction
from unbraid.types import Batch, Output, Terms, Weight


@objective("partial-beta-vae", reference="msvae2020")
class PartialBetaVAE(Objective):
    """beta-VAE on some latents: E[log p(x|z)] - beta KL of the first `penalised` variables - KL of the others."""

    def __init__(self, *, beta: Weight = 4.0, penalised: int = 2) -> None:
        self.beta, self.penalised = beta, penalised

    def check(self, dataset: FactorDataset, space: Space) -> None:
        if not 0 < self.penalised < space.leaves:
            raise UsageError(f"penalised must be 1 to {space.leaves - 1} of the latents, not {self.penalised}.")
        if space.learned is not None or any(block.coupled for block in space.blocks.values()):
            raise UsageError("partial-beta-vae weighs the KL of each latent, and these latents only have a joint one.")

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        each = context.space.kl(out.posterior, out.prior, out.sample).mean(-2)  # [member, latents]
        terms = {
            "reconstruction": (reconstruction(out, batch, context), 1.0),
            "kl_penalised": (each[..., : self.penalised].sum(-1), self.beta),
            "kl_others": (each[..., self.penalised :].sum(-1), 1.0),
        }
        return Terms(terms)
