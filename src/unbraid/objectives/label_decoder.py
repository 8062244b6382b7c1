r"""A supervised first stage (msvae2020, section 4 and appendix E): codes are the labels, and y averages all else.

    -E[log p(x|c)] - E[log q(c|x)],    c the row's factors, each standardised over the rows to train on

Decoder and encoder are fitted by likelihood on the same pairs, and meet nowhere: the decoder never sees a code that is
no label, and the encoder reads labels from observations, so that rows without one have codes as well. A circular
factor is two coordinates, sqrt 2 (cos, sin) of its angle: every coordinate has mean 0 and variance about 1.
"""

import math

import torch
from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.base import full_precision
from unbraid.objectives.base import Context, Objective, objective
from unbraid.objectives.weak import refuse_others, varying
from unbraid.types import Batch, Output, Terms, Weight


@objective("label-decoder", year=2020, reference="msvae2020")
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
        self.columns: dict[int, tuple[float, float]] = {}  # mean and deviation of a factor's values, by its column
        self.periods: dict[int, int] = {}  # values of a circular factor, by its column
        super().__init__(self.label_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """There must be labels, and a Normal variable for each coordinate."""
        refuse_others(space, "A label is compared with a mean")
        wanted = self._coordinates(dataset)
        if wanted == 0:
            raise UsageError(f"{dataset.name} has no factor labels to learn from.")
        if space.leaves != wanted or len(space.blocks) > 1:
            raise UsageError(f"These labels are {wanted} coordinates, not {space.leaves}: use z={wanted}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Learn how each factor's values are spread."""
        self._coordinates(dataset)
        values = dataset.values_of(rows)
        for column in self.columns:
            own = values[:, column].double()
            if bool((own < 0).any()):
                raise UsageError(f"Some rows of {dataset.name} lack a label of {dataset.factor_names[column]}.")
            self.columns[column] = (float(own.mean()), max(float(own.std(correction=0)), 1e-9))

    def _coordinates(self, dataset: FactorDataset) -> int:
        moving = varying(dataset)
        named = [dataset.factor_position(name) for name in self.factors] or moving
        round_ = {dataset.factor_position(name) for name in self.circular}
        if not set(named) <= set(moving) or not round_ <= set(named):
            raise UsageError("factors must name factors that vary, each once, and circular some of them.")
        self.columns = dict.fromkeys(named, (0.0, 1.0))
        self.periods = {column: dataset.sizes[column] for column in named if column in round_}
        return len(named) + len(round_)

    def codes(self, factors: Tensor, dtype: torch.dtype) -> Tensor:
        """Coordinates [..., z] of factor values [..., factors]."""
        parts: list[Tensor] = []
        for column, (mean, deviation) in self.columns.items():
            value = factors[..., column].to(dtype)
            if column in self.periods:
                angle = value * (2 * math.pi / self.periods[column])
                parts += [math.sqrt(2) * angle.cos(), math.sqrt(2) * angle.sin()]
            else:
                parts.append((value - mean) / deviation)
        return torch.stack(parts, -1)

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
