r"""A second stage on codes, what msvae2020's ablations (appendix L) have in the place of one with a refiner.

-E[log p(x|c, z)] + beta KL(q(z|x) || p(z)),    c of a frozen first stage
"""

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.latents import Stages
from unbraid.models.base import Model
from unbraid.models.coded import Coded
from unbraid.networks.refiners import staged_networks
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.objectives.staged import framing
from unbraid.types import Batch, Output, Shape, Terms, Weight


def coded_networks(shape: Shape) -> dict[str, str]:
    """Names of the encoder of a second stage, and of an ordinary decoder, that take these observations."""
    square = len(shape) == 3 and shape[1] == shape[2]
    decoder = {64: "conv-locatello", 32: "conv-small", 28: "conv-small"}.get(shape[-1]) if square else None
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

    closing = True

    def __init__(self, *, beta: Weight = 1.0) -> None:
        self.beta = beta
        super().__init__(self.stage_terms)

    def close(self, model: Model, dataset: FactorDataset, rows: Tensor) -> None:
        """Coordinates of z that its prior fits best, as MS-VAE's."""
        assert isinstance(model, Coded)
        dtype = model.frame.unit.dtype
        model.frame.fit(model.encode(dataset.images(part).to(dtype)) for part in framing(rows))

    def stage_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound on log p(x|c)."""
        assert isinstance(context.space, Stages)
        kl = closed_form_kl(out, context.space.own)
        return Terms({"reconstruction": (reconstruction(out, batch, context), 1.0), "kl": (kl, self.beta)})
