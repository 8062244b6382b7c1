r"""The second of two stages (msvae2020, eq. 2b): a VAE of what a frozen first stage could not draw.

    -E[log p(x|y, z)] + beta KL(q(z|x, y) || p(z)),    y = E p(y|c) of the first stage

Nothing is said about c: its posterior, its prior and its decoder are the first stage's, and stay so.
"""

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Stages
from unbraid.networks.modulated import staged_networks
from unbraid.objectives.base import Context, Draw, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.types import Batch, Output, Terms, Weight


@objective(
    "ms-vae",
    model="staged",
    year=2020,
    reference="msvae2020",
    stage="vae",
    network=staged_networks,
    defaults={"latents": "normal:5", "lr": 1e-4, "batch": 32},
)
class MSVAE(Objective):
    """MS-VAE: refines a finished run, E[log p(x|y, z)] - beta KL(q(z|x - y) || p(z)), y the run's own reconstruction.

    y comes from the mean of the run's code; with `samples` above 0, so many y from draws of the code stand beside each
    observation of a batch (appendix I).
    """

    def __init__(self, *, beta: Weight = 1.0, samples: int = 0) -> None:
        if samples < 0:
            raise UsageError(f"samples must be 0, for the mean code, or a number of draws, not {samples}.")
        self.beta, self.samples = beta, samples
        super().__init__(self.stage_terms)

    def rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Each row as often as there are draws of c for it."""
        return index if self.samples < 2 else index.repeat_interleave(self.samples, -1)

    def stage_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound on log p(x|y)."""
        assert isinstance(context.space, Stages)
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space.own), self.beta),
            }
        )
