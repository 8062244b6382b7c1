"""The likelihood that a config has by default, from the data."""

from typing import Any

from unbraid.data.factors import FactorDataset
from unbraid.data.tables import columns_of


def choose_likelihood(dataset: FactorDataset) -> str:
    """Return the default likelihood for data of one modality."""
    if len(dataset.shape) == 3:
        return "bernoulli"
    return "mixed" if any(column.classes for column in columns_of(dataset)) else "gaussian"


def choose_likelihood_settings(likelihood: str, dataset: FactorDataset) -> dict[str, Any]:
    """Return settings of a likelihood that the data choose: the widths of a table's columns, and a learned scale.

    The features of a table have variance 1 and often little noise. With a scale fixed at 1 a model would ignore
    whatever explains less of them than that.
    """
    columns = columns_of(dataset)
    widths = {"widths": tuple(column.width for column in columns) or (1,) * dataset.shape[-1]}
    learned = {"learned": True} if columns and likelihood in ("gaussian", "laplace", "mixed") else {}
    return {**(widths if likelihood == "mixed" else {}), **learned}
