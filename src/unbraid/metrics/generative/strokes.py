r"""Whether measured strokes survive encoding and decoding (esmaeili2018, figure 9: digits that training never saw).

The stroke's thickness, or the width of the ink, is measured on images and on their reconstructions (`data.strokes`):

    reconstruction   share of the reconstructions whose measure lies within the range of the originals' measures
    latent           rank correlation of one Normal latent's mean with the originals' measure

Rows that were pruned from training because they are thick have a range that begins where training ended, so the first
says whether the decoder draws what it was never shown. The latent of the second, and its sign, are those that have the
largest correlation in every other row; the score is the correlation in the rows between. `where` restricts both to rows
that fit a condition (`unbraid.data.pruning`), as `digit=7`. The details have both histograms and the mean error.
"""

from typing import Any, Literal

import numpy as np
import torch

from unbraid.data.pruning import match_rows
from unbraid.data.stroke_measures import measure_strokes
from unbraid.errors import UsageError
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import CHUNK, reconstructed
from unbraid.metrics.intervals import score_mean
from unbraid.metrics.intervention.factor_preservation import normal_coordinates, rank_correlation

Measure = Literal["thickness", "width"]
FACTS: dict[str, Any] = {
    "reference": "esmaeili2018",
    "needs": ("strokes", "images"),
    "trial": {"samples": 64},
}
BINS = 20
ROUNDING = 1e-6
"""Pixels by which equal strokes may differ."""


@metric("strokes/reconstruction", bounds=(0, 1), **FACTS)
def reconstruction(
    evaluation: Evaluation, *, measure: Measure = "thickness", where: str | None = None, samples: int = 2_000
) -> Score:
    """Share of reconstructions whose stroke thickness or width lies within the range of the originals'."""
    positions = _positions(evaluation, where, samples)
    seen = ((evaluation.dataset.images(evaluation.rows[part]), part) for part in positions.split(CHUNK))
    pairs = [(_strokes(x, measure), _strokes(reconstructed(evaluation, part), measure)) for x, part in seen]
    real, made = (np.concatenate(each) for each in zip(*pairs, strict=True))
    low, high = real.min() - ROUNDING, real.max() + ROUNDING
    inside = ((made >= low) & (made <= high)).astype(np.float64)
    edges = np.histogram_bin_edges(np.concatenate([real, made]), BINS)
    details = {
        "error": float(np.abs(made - real).mean()),
        "correlation": rank_correlation(real, made),
        "range": [float(real.min()), float(real.max())],
        "edges": edges.tolist(),
        "originals": np.histogram(real, edges)[0].tolist(),
        "reconstructions": np.histogram(made, edges)[0].tolist(),
    }
    return score_mean("strokes", "reconstruction", inside, bounds=(0.0, 1.0), details=details)


@metric("strokes/latent", bounds=(-1, 1), **FACTS)
def latent(
    evaluation: Evaluation, *, measure: Measure = "thickness", where: str | None = None, samples: int = 2_000
) -> Score:
    """Rank correlation of the latent that follows the originals' stroke thickness or width."""
    positions = _positions(evaluation, where, samples)
    real = _strokes(evaluation.dataset.images(evaluation.rows[positions]), measure)
    known = normal_coordinates(evaluation)
    means = evaluation.encode_means(positions)[:, known].double().cpu().numpy()
    found = [rank_correlation(column, real[::2]) for column in means[::2].T]
    chosen = int(np.argmax(np.abs(found)))
    value = float(np.sign(found[chosen])) * rank_correlation(means[1::2, chosen], real[1::2])
    details = {"latent": evaluation.code_names[known[chosen]], "chosen_by": found[chosen]}
    return Score("strokes", "latent", value, len(real[1::2]), details=details)


def _positions(evaluation: Evaluation, where: str | None, samples: int) -> torch.Tensor:
    """Some of the rows that fit a condition."""
    positions = evaluation.choose(len(evaluation))
    if where is not None:
        positions = positions[match_rows(evaluation.dataset, where)[evaluation.rows[positions]]]
    if samples < 4 or len(positions) < 4:
        raise UsageError(f"Strokes are compared on at least 4 rows, not on {min(samples, len(positions))}.")
    return positions[:samples]


def _strokes(images: torch.Tensor, measure: Measure) -> np.ndarray:
    return measure_strokes(images[:, 0].cpu().numpy())[:, ("thickness", "width").index(measure)]
