r"""A supervised second stage (msvae2020, section 4 and appendix E): its codes are labels.

    loss = -E[log p(x|y, b)] - weight_encoder E[log q(b|x - y)],    y = E p(y|c) of a frozen first stage

with b the coordinates of the row's labels (`unbraid.data.label_codes`), and c the first stage's code or the coordinates
of other labels. The model is `unbraid.models.staged.StagedVAE`, whose z is b.
"""

from typing import Any

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.staged import OWN_CODE
from unbraid.networks.refiners import choose_stage_networks
from unbraid.objectives.base import Context, check_label_latents, objective
from unbraid.objectives.decomposition import reconstruction
from unbraid.objectives.staged import StageObjective
from unbraid.types import Batch, Output, Terms, Weight


@objective(
    "ms-labels",
    model="staged",
    fixed=("samples",),
    reference="msvae2020",
    stage="labels",
    network=choose_stage_networks,
    defaults={"latents": "normal:1"},
    trial={"z": 1, "factors": ("scale",)},
)
class MSLabels(StageObjective):
    """Supervised (B, Y) -> X: E[log p(x|y, b)] + E[log q(b|x - y)] of labels b, on a frozen stage with images y.

    `factors` names the labels that are codes of this stage. If the run's codes are labels, `given` names those.
    `circular` ones return to their first value after the last. There must be as many latents (`z`) as coordinates.
    """

    own_labels: LabelCodes | None = None

    def __init__(self, *, factors: tuple[str, ...] = (), weight_encoder: Weight = 1.0, **labels: Any) -> None:
        self.factors, self.weight_encoder = factors, weight_encoder
        super().__init__(**labels)
        if set(factors) & set(self.given_factors):
            raise UsageError("factors and given name the same label; leave it out of one of them.")

    def check(self, dataset: FactorDataset, space: Space) -> None:
        if not self.factors:
            raise UsageError("ms-labels needs the labels that are its codes: name them, as factors=[scale].")
        check_label_latents(space, self.make_label_codes(dataset, self.factors))

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        super().begin(dataset, rows)
        self.own_labels = self.make_label_codes(dataset, self.factors)
        self.own_labels.check_complete(rows)

    def given(self, batch: Batch) -> dict[str, Tensor]:
        assert self.own_labels is not None and batch.factors is not None
        return {**super().given(batch), OWN_CODE: self.own_labels.codes(batch.factors, batch.x["x"].dtype)}

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        ((name, block),) = context.space.last_stage.blocks.items()
        encoding = -block.log_density(out.posterior[name], out.sample[name]).sum(-1).mean(-1)
        return Terms(
            {"reconstruction": (reconstruction(out, batch, context), 1.0), "labels": (encoding, self.weight_encoder)}
        )
