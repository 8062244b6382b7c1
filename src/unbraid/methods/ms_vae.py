r"""MS-VAE, the second of two stages (msvae2020, eq. 2b): a VAE of the details that a frozen first stage misses.

    loss = -E[log p(x|y, z)] + beta KL(q(z|x - y) || p(z)),    y = E p(y|c) of the first stage

The posterior, prior and decoder of c are the first stage's and do not change. The model is
`unbraid.models.staged.StagedVAE`. After training, z moves to the coordinates that its prior fits best
(`unbraid.models.recentre`, ours).
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

DEFAULTS = {"latents": "normal:5", "lr": 1e-4, "batch": 32}


@objective(
    "ms-vae",
    model="staged",
    reference="msvae2020",
    stage="vae",
    network=choose_stage_networks,
    defaults=DEFAULTS,
)
class MSVAE(StageObjective):
    """MS-VAE: refines a finished run, E[log p(x|y, z)] - beta KL(q(z|x - y) || p(z)), y the run's own reconstruction.

    y comes from the mean of the run's code. With `samples` above 0, each observation of a batch has that many y from
    draws of the code (appendix I). If the run's codes are labels, `given` names them in order, and y is decoded
    from the row's own labels; `circular` ones return to their first value after the last.
    """

    recentres = True

    def __init__(self, *, beta: Weight = 1.0, samples: int = 0, **labels: Any) -> None:
        super().__init__(**labels)
        if samples < 0:
            raise UsageError(f"samples must be 0, for the mean code, or a number of draws, not {samples}.")
        if samples and self.given_factors:
            raise UsageError("given labels cannot be sampled; leave out samples or given.")
        self.beta, self.samples = beta, samples

    def choose_rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Repeat each row for each of its draws of c."""
        return index if self.samples < 2 else index.repeat_interleave(self.samples, -1)

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        return elbo_terms(out, batch, context, self.beta)
