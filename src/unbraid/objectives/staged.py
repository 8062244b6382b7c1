"""Shared parts of second-stage objectives: the frozen first stage's codes are encoded, or replaced by labels."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import LabelCodes
from unbraid.errors import UsageError
from unbraid.models.staged import FIRST_CODE
from unbraid.objectives.base import Objective
from unbraid.types import Batch

LABEL_DECODER, LABEL_STAGE = "label-decoder", "ms-labels"
"""Objectives whose codes are labels: of a first stage, and of a stage that refines another."""


class StageObjective(Objective):
    """An objective of a stage on a frozen one, whose codes may be the labels of the factors that `given` names."""

    factors: tuple[str, ...] = ()  # whose labels are codes of this stage
    first_labels: LabelCodes | None = None

    def __init__(self, *, given: tuple[str, ...] = (), circular: tuple[str, ...] = (), **others: Any) -> None:
        if set(circular) - {*given, *self.factors}:
            raise UsageError(f"circular must name some of the labels that are {'named' if self.factors else 'given'}.")
        self.given_factors, self.circular, self.labelled = given, circular, bool(given or self.factors)
        super().__init__(**others)

    def check_parent(self, dataset: FactorDataset, parent: Mapping[str, Any]) -> None:
        if self.given_factors:
            check_codes_are_labels(parent, self.make_label_codes(dataset, self.given_factors))

    def begin(self, dataset: FactorDataset, rows: Tensor) -> None:
        if self.given_factors:
            self.first_labels = self.make_label_codes(dataset, self.given_factors)
            self.first_labels.check_complete(rows)

    def given(self, batch: Batch) -> dict[str, Tensor]:
        if self.first_labels is None:
            return {}
        assert batch.factors is not None
        return {FIRST_CODE: self.first_labels.codes(batch.factors, batch.x["x"].dtype)}

    def make_label_codes(self, dataset: FactorDataset, factors: tuple[str, ...]) -> LabelCodes:
        return LabelCodes(dataset, factors, tuple(name for name in self.circular if name in factors))


def find_label_codes(config: Mapping[str, Any], dataset: FactorDataset) -> LabelCodes | None:
    """Return the labels that serve as codes of a run, by its config as a mapping; None if it has other codes."""
    objective = config["objective"]
    if objective["name"] == LABEL_DECODER:
        return LabelCodes(dataset, tuple(objective["factors"]), tuple(objective["circular"]))
    first = find_label_codes(config["parent"]["config"], dataset) if objective["name"] == LABEL_STAGE else None
    if first is None:
        return None
    circular = [dataset.factor_names[column] for column in first.around]
    return LabelCodes(dataset, (*first.names, *objective["factors"]), (*circular, *objective["circular"]))


def check_codes_are_labels(config: Mapping[str, Any], labels: LabelCodes) -> None:
    """Raise a `UsageError` unless the codes of a run are these labels, in this order."""
    found = find_label_codes(config, labels.dataset)
    if found is None:
        raise UsageError(
            "given=… names labels to use as codes, and the codes of the run to refine are not labels: leave it out, or "
            f"refine a run of {LABEL_DECODER} or {LABEL_STAGE}."
        )
    if (found.columns, found.around) != (labels.columns, labels.around):
        circular = [name for name, column in zip(found.names, found.columns, strict=True) if column in found.around]
        wanted = f"given=[{','.join(found.names)}]" + (f" circular=[{','.join(circular)}]" if circular else "")
        raise UsageError(f"The codes of the run to refine are other labels: use {wanted}.")
