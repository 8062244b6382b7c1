r"""A second stage that is a flow (msvae2020, appendix D): the log density of x given what a frozen run draws.

    maximise  E[log p(x|y)],    y = E p(y|c) of the first stage

Only the flow and the encoder that reads y learn (`models/staged_flow.py`). The history has, beside the flow's log
density, that of a Normal around y, in nats per observation: what the flow adds is seen while it learns.
"""

import math

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.dequantise import FLOW
from unbraid.models.staged_flow import NORMAL
from unbraid.objectives.base import Context, objective
from unbraid.objectives.mixture_flow import networks
from unbraid.objectives.staged import SecondStage
from unbraid.types import Batch, Output, Terms


@objective(
    "ms-coupling",
    model="staged-flow",
    year=2020,
    reference="msvae2020",
    stage="flow",
    network=networks,
    defaults={"latents": None, "likelihood": "gaussian"},
    trial={"z": None, "network": None, "decoder_couplings": 2, "features": 8},
)
class FlowStage(SecondStage):
    """Refines a finished run by a coupling flow: log p(x|y), exact, y the run's own reconstruction.

    `features` is the width of what the encoder makes of y. Where the run's code is labels, `given` names them in their
    order: y is then that of the row's own labels, of which `circular` ones come back to their first value.
    """

    def __init__(self, *, given: tuple[str, ...] = (), circular: tuple[str, ...] = ()) -> None:
        self.take(given, circular)
        super().__init__(self.density_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """A flow's latents are as wide as an observation: there are no others."""
        if space.blocks:
            raise UsageError("A flow adds as many latents as an observation has values, no others: leave z= out.")
        if math.prod(dataset.shape) < 2:
            raise UsageError("A flow parts the values of an observation in two, and here there is only one.")

    def density_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The log density under the flow, and that under the Normal beside it."""
        densities = out.decoded["x"]
        return Terms({"flow": (densities[FLOW].mean(-1), -1.0), "normal": (densities[NORMAL].mean(-1), 0.0)})
