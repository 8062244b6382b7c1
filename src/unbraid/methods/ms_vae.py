r"""MS-VAE, the second of two stages (msvae2020, eq. 2b): a VAE of what a frozen first stage could not draw.

    loss = -E[log p(x|y, z)] + beta KL(q(z|x - y) || p(z)),    y = E p(y|c) of the first stage

Nothing is said about c: its posterior, its prior and its decoder are the first stage's, and stay so. The model is
`unbraid.models.staged.StagedVAE`. After training, z moves to the coordinates that its prior fits best
(`unbraid.models.recentre`), which is ours.
"""

from typing import Any

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.networks.refiners import choose_stage_networks
from unbraid.objectives.base import Context, Draw, objective
from unbraid.objectives.decomposition import elbo_terms
from unbraid.objectives.staged import StageObjective
from unbraid.types import Batch, Output, Terms, Weight


@objective(
    "ms-vae",
    model="staged",
    reference="msvae2020",
    stage="vae",
    network=choose_stage_networks,
    defaults={"latents": "normal:5", "lr": 1e-4, "batch": 32},
)
class MSVAE(StageObjective):
    """MS-VAE: refines a finished run, E[log p(x|y, z)] - beta KL(q(z|x - y) || p(z)), y the run's own reconstruction.

    y comes from the mean of the run's code; with `samples` above 0, that many y from draws of the code stand beside
    each observation of a batch (appendix I). Where that code is labels, `given` names them in their order: y is then
    that of the row's own labels, of which `circular` ones come back to their first value after the last.
    """

    recentres = True

    def __init__(self, *, beta: Weight = 1.0, samples: int = 0, **labels: Any) -> None:
        super().__init__(**labels)
        if samples < 0:
            raise UsageError(f"samples must be 0, for the mean code, or a number of draws, not {samples}.")
        if samples and self.given_factors:
            raise UsageError("Labels that are given have no draws: leave samples or given out.")
        self.beta, self.samples = beta, samples

    def choose_rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Return each row as often as there are draws of c for it."""
        return index if self.samples < 2 else index.repeat_interleave(self.samples, -1)

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        return elbo_terms(out, batch, context, self.beta)
