r"""Clustering accuracy: agreement of a discrete latent with a factor (esmaeili2018, section 6.3).

A row belongs to the most probable class k of its posterior. With n_kv rows of class k and factor value v,

    hungarian   1/N max_pi sum_k n_{k pi(k)}    over one-to-one matches pi of classes and values (xie2016)
    majority    1/N sum_k max_v n_kv            each class stands for its most frequent value (purity)

The second is never lower, and grows with the number of classes: with one class per row it is 1. If all rows are in one
class, both give the share of the most frequent value, which is `chance` in the details.

References: Xie, Girshick and Farhadi (2016), Unsupervised deep embedding for clustering analysis, ICML; Manning,
Raghavan and Schuetze (2008), Introduction to information retrieval, section 16.3.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_known, to_numpy
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.discrete.discrete_latents import choose_discrete_latent
from unbraid.metrics.intervals import score_mean, spread_at

Match = Literal["hungarian", "majority"]
cluster_metric = partial(metric_protocol, needs=("factors", "discrete"), bounds=(0, 1))


@cluster_metric(
    "clusters/hungarian",
    "Accuracy of a discrete latent as a label of a factor (the first), classes and values matched one to one.",
    "xie2016",
)
@cluster_metric(
    "clusters/majority",
    "Accuracy of a discrete latent as a label of a factor (the first), each class matched to its most frequent value.",
    "manning2008",
)
def on_run(evaluation: Evaluation, protocol: Match, *, factor: str | None = None, latent: str | None = None) -> Score:
    variable = choose_discrete_latent(evaluation, latent)
    name = factor or evaluation.dataset.factor_names[0]
    values, _ = evaluation.choose_factors([name])
    score = clusters(variable.classes(evaluation.means), values[:, 0], match=protocol)
    return replace(score, details={**score.details, "factor": name, "latent": variable.name})


def clusters(classes: Any, labels: Any, *, match: str = "hungarian") -> Score:
    """Return the accuracy of classes [rows] as labels [rows] under the best match; the details hold it and n_kv."""
    from scipy.optimize import linear_sum_assignment

    check_known("match of clusters", match, get_args(Match))
    arrays = to_numpy(classes), to_numpy(labels)
    shapes = [array.shape for array in arrays]
    if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays):
        raise DataError("classes and labels must be known in every row: leave out rows with NaN.")
    if len(shapes[0]) != 1 or shapes[0] != shapes[1] or shapes[0][0] < 2:
        raise DataError(
            f"classes and labels must both have the shape [rows], 2 rows or more, not {shapes[0]} and {shapes[1]}."
        )
    (groups, rows), (values, columns) = (np.unique(array, return_inverse=True) for array in arrays)
    table = np.zeros((len(groups), len(values)), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    pairs = linear_sum_assignment(-table) if match == "hungarian" else (np.arange(len(table)), table.argmax(1))
    value_of = np.full(len(table), -1)  # a class without a matched value is wrong in every row
    value_of[pairs[0]] = pairs[1]
    right = (value_of[rows] == columns).astype(np.float64)
    details = {
        "match": [[groups[k].item(), values[v].item()] for k, v in zip(*pairs, strict=True)],
        "counts": table.tolist(),
        "chance": float(table.sum(0).max() / table.sum()),
    }
    covers = spread_at(len(right))  # few rows of a class favour the match
    return score_mean("clusters", match, right, bounds=(0.0, 1.0), details=details, covers=covers)
