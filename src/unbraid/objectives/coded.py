r"""What msvae2020's ablations (appendix L) have in the place of two stages with a refiner.

ms-code            -E[log p(x|c, z)] + beta KL(q(z|x) || p(z)),    c of a frozen first stage
partial-beta-vae   -E[log p(x|c, z)] + beta KL(q(c|x) || p(c)) + KL(q(z|x) || p(z)),    all of it learned at once
"""

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space, Stages
from unbraid.networks.modulated import staged_networks
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.types import Batch, Output, Shape, Terms, Weight


def coded_networks(shape: Shape) -> dict[str, str]:
    """Names of the encoder of a second stage, and of an ordinary decoder, that take these observations."""
    decoder = {64: "conv-locatello", 32: "conv-small", 28: "conv-small"}.get(shape[-1]) if len(shape) == 3 else None
    return {"encoder": staged_networks(shape)["encoder"], "decoder": decoder or "mlp"}


@objective(
    "ms-code",
    model="coded",
    year=2020,
    reference="msvae2020",
    stage="code",
    network=coded_networks,
    defaults={"latents": "normal:5", "lr": 1e-4, "batch": 32},
)
class MSCode(Objective):
    """A second stage on codes: E[log p(x|c, z)] - beta KL(q(z|x) || p(z)), c of a finished run, no y for the decoder.

    z comes from x - y, or without `residual` from x.
    """

    def __init__(self, *, beta: Weight = 1.0, residual: bool = True) -> None:
        self.beta, self.residual = beta, residual
        super().__init__(self.stage_terms)

    def stage_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound on log p(x|c)."""
        assert isinstance(context.space, Stages)
        kl = closed_form_kl(out, context.space.own)
        return Terms({"reconstruction": (reconstruction(out, batch, context), 1.0), "kl": (kl, self.beta)})


@objective("partial-beta-vae", year=2020, reference="msvae2020")
class PartialBetaVAE(Objective):
    """beta-VAE on some latents: E[log p(x|z)] - beta KL of the first `penalised` variables - KL of the others."""

    def __init__(self, *, beta: Weight = 4.0, penalised: int = 2) -> None:
        self.beta, self.penalised = beta, penalised
        super().__init__(self.bound)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Some variables must be penalised, and some not."""
        if not 0 < self.penalised < space.leaves:
            raise UsageError(f"penalised must be 1 to {space.leaves - 1} of the latents, not {self.penalised}.")
        if space.learned is not None or any(block.coupled for block in space.blocks.values()):
            raise UsageError("partial-beta-vae weighs each latent's own KL, and these latents have a joint one only.")

    def bound(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Reconstruction and the two KLs."""
        each = context.space.kl(out.posterior, out.prior, out.sample).mean(-2)  # [member, latents]
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl_penalised": (each[..., : self.penalised].sum(-1), self.beta),
                "kl_others": (each[..., self.penalised :].sum(-1), 1.0),
            }
        )
