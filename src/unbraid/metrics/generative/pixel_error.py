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
from unbraid.metrics.generative.features.feature_sets import find_pixel_errors, note_pixel_errors, reconstruct
from unbraid.metrics.intervals import score_mean
from unbraid.progress import track

DECODE_BATCH = 1024
PROTOCOLS = ("l1", "l2")
"""Order of the errors in the table."""

pixel_metric = partial(metric_protocol, reference="kingma2014", bounds=(0.0, math.inf))


@pixel_metric(
    "reconstruction/l1", "Mean absolute difference per pixel between originals and decoder means of posterior means."
)
@pixel_metric(
    "reconstruction/l2", "Mean squared difference per pixel between originals and decoder means of posterior means."
)
def on_run(evaluation: Evaluation, protocol: str, *, samples: int = 10_000) -> Score:
    check_at_least(2, samples=samples)
    errors = _compute_errors(evaluation, samples)[:, PROTOCOLS.index(protocol)].cpu().numpy()
    if not math.isfinite(errors.mean()):
        raise DataError("The decoder returns NaN or infinite values.")
    return score_mean("reconstruction", protocol, errors, bounds=(0.0, math.inf))


def _compute_errors(evaluation: Evaluation, samples: int) -> Tensor:
    """Return both errors [chosen rows, 2]; rows that another score has decoded are not decoded again."""
    rows, known = evaluation.choose(samples), find_pixel_errors(evaluation)
    missing = rows[known[rows, 0].isnan()]
    with torch.no_grad():
        for part in track("reconstruction", missing.split(DECODE_BATCH) if len(missing) else ()):
            originals = evaluation.dataset.images(evaluation.rows[part])
            note_pixel_errors(evaluation, part, originals, reconstruct(evaluation, part))
    return known[rows]
