r"""Errors of reconstructions per pixel:

    L1 = mean_n mean_p |x_np - x'_np|,    L2 = mean_n mean_p (x_np - x'_np)^2

with x' the decoder's mean at the posterior mean, so nothing is random. Means over pixels make images of different sizes
comparable. L2 is the mean squared error, not its root.
"""

import math
from functools import partial

import torch
from torch import Tensor

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.generative.features.feature_sets import reconstruct
from unbraid.metrics.intervals import score_mean
from unbraid.progress import track

DECODE_BATCH = 1024
pixel_metric = partial(metric_protocol, reference="kingma2014", bounds=(0.0, math.inf))


@pixel_metric(
    "reconstruction/l1", "Mean absolute difference per pixel between originals and decoder means of posterior means."
)
@pixel_metric(
    "reconstruction/l2", "Mean squared difference per pixel between originals and decoder means of posterior means."
)
def on_run(evaluation: Evaluation, protocol: str, *, samples: int = 10_000) -> Score:
    check_at_least(2, samples=samples)
    errors = (
        evaluation.compute_once(("pixel errors", samples), lambda: _compute_errors(evaluation, samples))[protocol]
        .cpu()
        .numpy()
    )
    if not math.isfinite(errors.mean()):
        raise DataError("The decoder returns NaN or infinite values.")
    return score_mean("reconstruction", protocol, errors, bounds=(0.0, math.inf))


def _compute_errors(evaluation: Evaluation, samples: int) -> dict[str, Tensor]:
    """Return both errors [rows] of the chosen rows, in float64."""
    parts: dict[str, list[Tensor]] = {"l1": [], "l2": []}
    rows = evaluation.choose(samples)
    with torch.no_grad():
        for part in track("reconstruction", rows.split(DECODE_BATCH)):
            x = evaluation.dataset.images(evaluation.rows[part])
            difference = (x - reconstruct(evaluation, part)).flatten(1).double()
            parts["l1"].append(difference.abs().mean(1))
            parts["l2"].append(difference.square().mean(1))
    return {name: torch.cat(values) for name, values in parts.items()}
