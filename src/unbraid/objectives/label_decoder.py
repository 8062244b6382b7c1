r"""A supervised first stage (msvae2020, section 4 and appendix E): codes are the labels, and y averages all else.

    -E[log p(x|c)] - E[log q(c|x)],    c the coordinates of the row's labels (`unbraid.data.label_codes`)

Decoder and encoder are fitted by likelihood on the same pairs, and meet nowhere: the decoder never sees a code that is
no label, and the encoder reads labels from observations, so that rows without one have codes as well.
"""

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import Labels
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import full_precision
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.weak import refuse_others
from unbraid.types import Batch, Output, Terms, Weight


@objective("label-decoder", year=2020, reference="msvae2020", untrained=("conditional", "covariance", "flow"))
class LabelDecoder(Objective):
    """Supervised C -> Y: E[log p(x|c)] + E[log q(c|x)] of labels c, for a second stage to refine.

    `factors` names those that are codes (none: all that vary); what they leave open is averaged. `circular` ones come
    back to their first value after the last. There must be as many latents (`z`) as coordinates.
    """

    labelled = True

    def __init__(
        self, *, factors: tuple[str, ...] = (), circular: tuple[str, ...] = (), weight_encoder: Weight = 1.0
    ) -> None:
        self.factors, self.circular, self.weight_encoder = factors, circular, weight_encoder
        self.labels: Labels | None = None
        super().__init__(self.label_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """There must be labels, and a Normal variable for each coordinate."""
        refuse_others(space, "A label is compared with a mean")
        wanted = Labels(dataset, self.factors, self.circular).width
        if wanted == 0:
            raise UsageError(f"{dataset.name} has no factor labels to learn from.")
        if space.leaves != wanted or len(space.blocks) > 1:
            raise UsageError(f"These labels are {wanted} coordinates, not {space.leaves}: use z={wanted}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Every row needs its labels."""
        self.labels = Labels(dataset, self.factors, self.circular)
        self.labels.refuse_missing(rows)

    def codes(self, factors: Tensor, dtype: torch.dtype) -> Tensor:
        """Coordinates [..., z] of factor values [..., factors]."""
        assert self.labels is not None
        return self.labels.codes(factors, dtype)

    def label_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """How badly labels explain observations, and observations labels."""
        assert batch.factors is not None
        x, (name, block) = batch.x["x"], next(iter(context.space.blocks.items()))
        codes = self.codes(batch.factors, x.dtype)
        raw = full_precision(context.apply("model.decoder", context.part(codes)))
        drawn = context.apply("model.likelihood", raw)
        dims = x.ndim - codes.ndim + 1
        decoding = -context.likelihoods["x"].log_prob(drawn, x, dims).mean(-1)
        encoding = -block.log_density(out.posterior[name], codes).sum(-1).mean(-1)
        return Terms({"reconstruction": (decoding, 1.0), "labels": (encoding, self.weight_encoder)})
