r"""Preservation of strokes by encoding and decoding (esmaeili2018, figure 9: digits outside the training data).

`data.stroke_measures` measures the thickness of the stroke, or the width of the ink, on images and reconstructions:

    reconstruction   share of the reconstructions whose measure lies within the range of the originals' measures
    latent           rank correlation of one Normal latent's mean with the originals' measure

If thick strokes were pruned from training, the range of the pruned rows begins where the training data end, and
`reconstruction` shows whether the decoder extrapolates. `latent` picks the latent, and its sign, with the largest
correlation in every other row and scores the rows in between. `where` restricts both to rows that meet a condition
(`unbraid.data.pruning`), as `digit=7`. The details hold both histograms and the mean error.
"""

from typing import Any, Literal

import numpy as np
import torch

from unbraid.data.pruning import match_rows
from unbraid.data.stroke_measures import measure_strokes
from unbraid.errors import UsageError
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import DECODE_BATCH, reconstruct
from unbraid.metrics.intervals import no_interval, score_mean
from unbraid.metrics.intervention.factor_preservation import find_normal_coordinates, rank_correlation

Measure = Literal["thickness", "width"]
FACTS: dict[str, Any] = {
    "reference": "esmaeili2018",
    "needs": ("strokes", "images"),
    "trial": {"samples": 64},
}
BINS = 20
ROUNDING_PIXELS = 1e-6


@metric("strokes/reconstruction", bounds=(0, 1), **FACTS)
def reconstruction(
    evaluation: Evaluation, *, measure: Measure = "thickness", where: str | None = None, samples: int = 2_000
) -> Score:
    """Share of reconstructions whose stroke thickness or width lies within the range of the originals'."""
    positions = _choose_rows(evaluation, where, samples)
    batches = positions.split(DECODE_BATCH)
    real = np.concatenate([_measure(evaluation.dataset.images(evaluation.rows[part]), measure) for part in batches])
    made = np.concatenate([_measure(reconstruct(evaluation, part), measure) for part in batches])
    inside = (made >= real.min() - ROUNDING_PIXELS) & (made <= real.max() + ROUNDING_PIXELS)
    edges = np.histogram_bin_edges(np.concatenate([real, made]), BINS)
    details = {
        "error": float(np.abs(made - real).mean()),
        "correlation": rank_correlation(real, made),
        "range": [float(real.min()), float(real.max())],
        "edges": edges.tolist(),
        "originals": np.histogram(real, edges)[0].tolist(),
        "reconstructions": np.histogram(made, edges)[0].tolist(),
    }
    return score_mean("strokes", "reconstruction", inside.astype(np.float64), bounds=(0.0, 1.0), details=details)


@metric("strokes/latent", bounds=(-1, 1), **FACTS)
def latent(
    evaluation: Evaluation, *, measure: Measure = "thickness", where: str | None = None, samples: int = 2_000
) -> Score:
    """Rank correlation of the best latent with the originals' stroke thickness or width."""
    positions = _choose_rows(evaluation, where, samples)
    real = _measure(evaluation.dataset.images(evaluation.rows[positions]), measure)
    known = find_normal_coordinates(evaluation)
    means = evaluation.encode_means(positions)[:, known].double().cpu().numpy()
    found = [rank_correlation(column, real[::2]) for column in means[::2].T]
    chosen = int(np.argmax(np.abs(found)))
    value = float(np.sign(found[chosen])) * rank_correlation(means[1::2, chosen], real[1::2])
    details = {"latent": evaluation.code_names[known[chosen]], "chosen_by": found[chosen]}
    why = no_interval("which latent is chosen changes with the rows")
    return Score("strokes", "latent", value, len(real[1::2]), details=details, covers=why)


def _choose_rows(evaluation: Evaluation, where: str | None, samples: int) -> torch.Tensor:
    """Return random positions of rows that meet a condition."""
    positions = evaluation.choose(len(evaluation))
    if where is not None:
        positions = positions[match_rows(evaluation.dataset, where)[evaluation.rows[positions]]]
    if samples < 4 or len(positions) < 4:
        raise UsageError(f"Strokes are compared on at least 4 rows, not {min(samples, len(positions))}.")
    return positions[:samples]


def _measure(images: torch.Tensor, measure: Measure) -> np.ndarray:
    return measure_strokes(images[:, 0].cpu().numpy())[:, ("thickness", "width").index(measure)]
