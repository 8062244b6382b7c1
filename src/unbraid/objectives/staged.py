r"""The second of two stages (msvae2020, eq. 2b): a VAE of what a frozen first stage could not draw.

    -E[log p(x|y, z)] + beta KL(q(z|x, y) || p(z)),    y = E p(y|c) of the first stage

Nothing is said about c: its posterior, its prior and its decoder are the first stage's, and stay so. Where the codes of
the first stage are labels, a stage may learn at the rows' own labels, and its own codes may be labels as well:

    -E[log p(x|y, b)] - E[log q(b|x, y)],    y = E p(y|c),    b and c the coordinates of the row's labels
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import Labels
from unbraid.errors import UsageError
from unbraid.latents import Space, Stages
from unbraid.models.base import Model
from unbraid.models.staged import CODES, OWN, Staged
from unbraid.networks.refiners import staged_networks
from unbraid.objectives.base import Context, Draw, Objective, objective
from unbraid.objectives.decomposition import closed_form_kl, reconstruction
from unbraid.objectives.labels import refuse_other_labels
from unbraid.objectives.weak import refuse_others
from unbraid.types import Batch, Output, Terms, Weight

FRAMED, CHUNK = 4_096, 256
"""Rows by which the coordinates of z are chosen, and of these as many as are encoded at once."""


class SecondStage(Objective):
    """Of a stage on a frozen one, whose codes are encoded, or the labels of the factors that `take` is told."""

    given: tuple[str, ...] = ()
    circular: tuple[str, ...] = ()
    earlier: Labels | None = None

    def take(self, given: tuple[str, ...], circular: tuple[str, ...], own: tuple[str, ...] = ()) -> None:
        """Labels of these factors in the place of codes; `circular` are some of them, or of a stage's own labels."""
        if set(circular) - {*given, *own}:
            raise UsageError(f"circular must name some of the labels that are {'named' if own else 'given'}.")
        self.given, self.circular, self.labelled = given, circular, bool(given or own)

    def follows(self, dataset: FactorDataset, parent: Mapping[str, Any]) -> None:
        """The first stage's codes must be the labels that are given."""
        if self.given:
            refuse_other_labels(self._given(dataset), parent)

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Every row needs the labels that are given."""
        if self.given:
            self.earlier = self._given(dataset)
            self.earlier.refuse_missing(rows)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """The labels in the place of codes."""
        if self.earlier is None:
            return {}
        assert batch.factors is not None
        return {CODES: self.earlier.codes(batch.factors, batch.x["x"].dtype)}

    def _given(self, dataset: FactorDataset) -> Labels:
        return Labels(dataset, self.given, tuple(name for name in self.circular if name in self.given))


def framing(rows: Tensor) -> tuple[Tensor, ...]:
    """At most as many rows as coordinates are chosen by, evenly spaced, in chunks."""
    return rows[:: -(-len(rows) // FRAMED)].split(CHUNK)


@objective(
    "ms-vae",
    model="staged",
    year=2020,
    reference="msvae2020",
    stage="vae",
    network=staged_networks,
    defaults={"latents": "normal:5", "lr": 1e-4, "batch": 32},
)
class MSVAE(SecondStage):
    """MS-VAE: refines a finished run, E[log p(x|y, z)] - beta KL(q(z|x - y) || p(z)), y the run's own reconstruction.

    y comes from the mean of the run's code; with `samples` above 0, so many y from draws of the code stand beside each
    observation of a batch (appendix I). Where that code is labels, `given` names them in their order: y is then that of
    the row's own labels, of which `circular` ones come back to their first value after the last.
    """

    closing = True

    def __init__(
        self, *, beta: Weight = 1.0, samples: int = 0, given: tuple[str, ...] = (), circular: tuple[str, ...] = ()
    ) -> None:
        if samples < 0:
            raise UsageError(f"samples must be 0, for the mean code, or a number of draws, not {samples}.")
        if samples and given:
            raise UsageError("Labels that are given have no draws: leave samples or given out.")
        self.beta, self.samples = beta, samples
        self.take(given, circular)
        super().__init__(self.stage_terms)

    def rows(self, index: Tensor, dataset: FactorDataset, draw: Draw) -> Tensor:
        """Each row as often as there are draws of c for it."""
        return index if self.samples < 2 else index.repeat_interleave(self.samples, -1)

    def close(self, model: Model, dataset: FactorDataset, rows: Tensor) -> None:
        """Coordinates of z that its prior fits best, by evenly spaced rows."""
        assert isinstance(model, Staged)
        model.frame.fit(self._posterior(model, dataset, part) for part in framing(rows))

    def _posterior(self, model: Staged, dataset: FactorDataset, rows: Tensor) -> dict[str, Tensor]:
        x = dataset.images(rows).to(model.frame.unit.dtype)
        if self.earlier is None:
            return model.encode(x)
        return model.encode_given(x, self.earlier.codes(dataset.values_of(rows), x.dtype))

    def stage_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound on log p(x|y)."""
        assert isinstance(context.space, Stages)
        return Terms(
            {
                "reconstruction": (reconstruction(out, batch, context), 1.0),
                "kl": (closed_form_kl(out, context.space.own), self.beta),
            }
        )


@objective(
    "ms-labels",
    model="staged",
    fixed=("samples",),
    year=2020,
    reference="msvae2020",
    stage="labels",
    network=staged_networks,
    defaults={"latents": "normal:1"},
    trial={"z": 1, "factors": ("scale",)},
)
class LabelStage(SecondStage):
    """Supervised (B, Y) -> X: E[log p(x|y, b)] + E[log q(b|x - y)] of labels b, on a frozen stage that draws y.

    `factors` names the labels that are codes of this stage, `given` those that are the codes of the run, if they are;
    `circular` ones come back to their first value after the last. There must be as many latents (`z`) as coordinates.
    """

    def __init__(
        self,
        *,
        factors: tuple[str, ...] = (),
        given: tuple[str, ...] = (),
        circular: tuple[str, ...] = (),
        weight_encoder: Weight = 1.0,
    ) -> None:
        if set(factors) & set(given):
            raise UsageError("A label is one of factors or one of given, not both.")
        self.factors, self.weight_encoder = factors, weight_encoder
        self.own: Labels | None = None
        self.take(given, circular, factors)
        super().__init__(self.label_terms)

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """There must be labels, and a Normal variable for each coordinate."""
        refuse_others(space, "A label is compared with a mean")
        if not self.factors:
            raise UsageError("Which labels are codes of this stage? Name them: factors=[…].")
        wanted = self._own(dataset).width
        if space.leaves != wanted or len(space.blocks) > 1:
            raise UsageError(f"These labels are {wanted} coordinates, not {space.leaves}: use z={wanted}.")

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        """Every row needs its labels."""
        super().begin(dataset, rows)
        self.own = self._own(dataset)
        self.own.refuse_missing(rows)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """The labels in the place of codes, this stage's own included."""
        assert self.own is not None and batch.factors is not None
        return {**super().inputs(batch), OWN: self.own.codes(batch.factors, batch.x["x"].dtype)}

    def _own(self, dataset: FactorDataset) -> Labels:
        return Labels(dataset, self.factors, tuple(name for name in self.circular if name in self.factors))

    def label_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """How badly y and labels explain observations, and what is missing from y the labels."""
        assert isinstance(context.space, Stages)
        ((name, block),) = context.space.own.blocks.items()
        reading = -block.log_density(out.posterior[name], out.sample[name]).sum(-1).mean(-1)
        return Terms(
            {"reconstruction": (reconstruction(out, batch, context), 1.0), "labels": (reading, self.weight_encoder)}
        )
