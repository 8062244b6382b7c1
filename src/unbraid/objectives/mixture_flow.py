r"""MS-FLOW (msvae2020, appendix D): the density of a mixture of Gaussians, sharpened by a conditional flow.

    maximise  E[log p(x)],    log p(x) = log sum_c pi_c p(x | y_c)

Only the flow and the encoder that reads y_c learn; the mixture was fitted before (`models/mixture_flow.py`). The
history has the log density of both, in nats per observation, so that what the flow adds is seen while it learns.
"""

from unbraid.data.factors import FactorDataset
from unbraid.latents import Space
from unbraid.models.dequantise import FLOW
from unbraid.models.mixture_flow import MIXTURE, suits
from unbraid.objectives.base import Context, Objective, objective
from unbraid.types import Batch, Output, Shape, Terms


def networks(shape: Shape) -> dict[str, str]:
    """Any encoder reads y; a flow stands where a decoder does."""
    return {"encoder": "mlp", "decoder": "coupling"}


@objective(
    "ms-flow",
    model="mixture-flow",
    year=2020,
    reference="msvae2020",
    network=networks,
    defaults={"latents": "concrete:10", "likelihood": "gaussian", "batch": 1000, "lr": 1e-3},
    trial={"z": None, "network": None, "decoder_couplings": 2, "features": 8, "latents": "concrete:3"},
)
class MixtureFlow(Objective):
    """MS-FLOW: a flow raises the log density log sum_c pi_c p(x|y_c) over that of a frozen mixture of Gaussians.

    `condition` says what the flow sees of a component: its `mean` or a `sample` from it. `floor` is the least variance
    of a component, in units of the observations, and `features` the width of what the encoder makes of y.
    """

    def __init__(self) -> None:
        super().__init__(self.density_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """One Concrete variable, whose classes are the components."""
        suits(dataset, space)

    def density_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The log density under the flow, and that under the mixture beside it."""
        densities = out.decoded["x"]
        return Terms({"flow": (densities[FLOW].mean(-1), -1.0), "mixture": (densities[MIXTURE].mean(-1), 0.0)})
