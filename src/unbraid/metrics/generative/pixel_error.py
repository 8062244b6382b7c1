r"""How far reconstructions are from the originals, pixel by pixel:

    L1 = mean_n mean_p |x_np - x'_np|,    L2 = mean_n mean_p (x_np - x'_np)^2

with x' the decoder's mean of the posterior's mean: no code and no pixel is drawn. The means over pixels make pictures
of different sizes comparable; L2 is the mean squared error, not its root.
"""

import math

import torch
from torch import Tensor

from unbraid.errors import DataError, SettingError
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import reconstructed
from unbraid.metrics.intervals import of_mean
from unbraid.progress import progress

CHUNK = 1024
"""Rows that are decoded at a time."""


@metric("reconstruction/l1", year=2014, reference="kingma2014", bounds=(0.0, math.inf))
def l1(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """Mean absolute difference per pixel between originals and decoder means of posterior means."""
    return _score(evaluation, samples, "l1")


@metric("reconstruction/l2", year=2014, reference="kingma2014", bounds=(0.0, math.inf))
def l2(evaluation: Evaluation, *, samples: int = 10_000) -> Score:
    """Mean squared difference per pixel between originals and decoder means of posterior means."""
    return _score(evaluation, samples, "l2")


def _score(evaluation: Evaluation, samples: int, protocol: str) -> Score:
    errors = _errors(evaluation, samples)[protocol].cpu().numpy()
    value = float(errors.mean())
    if not math.isfinite(value):
        raise DataError("The decoder returns NaN or infinite values.")
    return Score("reconstruction", protocol, value, len(errors), of_mean(errors, bounds=(0.0, math.inf)))


def _errors(evaluation: Evaluation, samples: int) -> dict[str, Tensor]:
    """Both errors of each chosen row [rows], in float64."""

    def make() -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {"l1": [], "l2": []}
        rows = evaluation.choose(samples)
        with torch.no_grad(), progress("reconstruction", len(rows)) as bar:
            for part in rows.split(CHUNK):
                x = evaluation.dataset.images(evaluation.rows[part])
                difference = (x - reconstructed(evaluation, part)).flatten(1).double()
                parts["l1"].append(difference.abs().mean(1))
                parts["l2"].append(difference.square().mean(1))
                bar.advance(len(part))
        return {name: torch.cat(values) for name, values in parts.items()}

    if samples < 2:
        raise SettingError(f"samples must be at least 2, not {samples}.")
    return evaluation.once(("pixel errors", samples), make)
