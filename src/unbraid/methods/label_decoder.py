r"""A supervised first stage (msvae2020, section 4 and appendix E): codes are labels, and y averages everything else.

    loss = -E[log p(x|c)] - weight_encoder E[log q(c|x)]

with c the coordinates of the row's labels (`unbraid.data.label_codes`). Decoder and encoder maximise likelihoods of the
same pairs and share no weights. The decoder only sees labels. The encoder predicts labels from observations, so that
rows without a label also have codes.
"""

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import to_full_precision
from unbraid.objectives.base import Context, Objective, check_label_latents, objective
from unbraid.types import Batch, Output, Terms, Weight


@objective("label-decoder", reference="msvae2020", untrained=("conditional", "covariance", "flow"))
class LabelDecoder(Objective):
    """Supervised C -> Y: E[log p(x|c)] + E[log q(c|x)] of labels c, for a second stage to refine.

    `factors` names the factors that are codes (none: all that vary); the decoder averages over the others. `circular`
    ones return to their first value after the last. There must be as many latents (`z`) as coordinates.
    """

    labelled = True

    def __init__(
        self, *, factors: tuple[str, ...] = (), circular: tuple[str, ...] = (), weight_encoder: Weight = 1.0
    ) -> None:
        self.factors, self.circular, self.weight_encoder = factors, circular, weight_encoder
        self.labels: LabelCodes | None = None

    def check(self, dataset: FactorDataset, space: Space) -> None:
        labels = LabelCodes(dataset, self.factors, self.circular)
        if labels.width == 0:
            raise UsageError(f"{dataset.name} has no factor labels to learn from.")
        check_label_latents(space, labels)

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        self.labels = LabelCodes(dataset, self.factors, self.circular)
        self.labels.check_complete(rows)

    def terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        assert batch.factors is not None and self.labels is not None
        x, (name, block) = batch.x["x"], next(iter(context.space.blocks.items()))
        codes = self.labels.codes(batch.factors, x.dtype)
        raw = to_full_precision(context.apply("model.decoder", context.part(codes)))
        decoded = context.apply("model.likelihood", raw)
        decoding = -context.likelihoods["x"].log_prob(decoded, x, x.ndim - codes.ndim + 1).mean(-1)
        encoding = -block.log_density(out.posterior[name], codes).sum(-1).mean(-1)
        return Terms({"reconstruction": (decoding, 1.0), "labels": (encoding, self.weight_encoder)})
