"""Which runs have labels as codes, and which labels they are."""

from collections.abc import Mapping
from typing import Any

from unbraid.data.factors import FactorDataset
from unbraid.data.label_codes import Labels
from unbraid.errors import UsageError

FIRST, LATER = "label-decoder", "ms-labels"
"""The objectives whose codes are labels: of a first stage, and of one that refines another."""


def labels_of(config: Mapping[str, Any], dataset: FactorDataset) -> Labels | None:
    """Which labels the codes of a run are, by its config; None where some of them are none."""
    chosen = config["objective"]
    if chosen["name"] == FIRST:
        return Labels(dataset, tuple(chosen["factors"]), tuple(chosen["circular"]))
    before = labels_of(config["parent"]["config"], dataset) if chosen["name"] == LATER else None
    if before is None:
        return None
    around = [dataset.factor_names[column] for column in before.around]
    return Labels(dataset, (*before.names, *chosen["factors"]), (*around, *chosen["circular"]))


def refuse_other_labels(given: Labels, config: Mapping[str, Any]) -> None:
    """A `UsageError` unless the codes of a run are these labels, in this order."""
    found = labels_of(config, given.dataset)
    if found is None:
        raise UsageError(
            "given=… names labels that stand in the place of codes, and the codes of the run to refine are no labels: "
            f"leave it out, or refine a run of {FIRST} or {LATER}."
        )
    if (found.columns, found.around) != (given.columns, given.around):
        around = [name for name, column in zip(found.names, found.columns, strict=True) if column in found.around]
        told = f"given=[{','.join(found.names)}]" + (f" circular=[{','.join(around)}]" if around else "")
        raise UsageError(f"The codes of the run to refine are other labels: use {told}.")
