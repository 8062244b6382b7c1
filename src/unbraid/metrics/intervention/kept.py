r"""Whether a picture keeps a factor's value while one latent is moved (esmaeili2018, figure 7).

Rows are encoded, one Normal coordinate j is set to places t in [-span, span], all else stays as encoded, and the
decoder's means are given to a classifier that was trained on the data's own labels (`features.classifier`):

    kept = mean_j mean_n mean_t [ value seen at z_j = t  equals  value seen in the row's own reconstruction ]

With `along`, j is the one coordinate whose means have the largest absolute rank correlation with that factor over all
rows (which of them is decided for each model: latents have no fixed order); without, all coordinates j that are active,
Var(means) > .01, or all if none is. A latent that the decoder ignores keeps everything: read the score with what moving
the latent changes, which is in the details (`moved`, the mean absolute change per pixel between the two ends).
"""

from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from unbraid.errors import DataError, UsageError
from unbraid.latents import Normal
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.classifier import NAME, predicted
from unbraid.metrics.generative.features.sets import CHUNK, chosen_network, decoded
from unbraid.metrics.intervals import of_mean

ACTIVE = 0.01
"""Variance of the means of a latent that carries something (burda2016)."""


@metric(
    "kept/classifier",
    year=2018,
    reference="esmaeili2018",
    needs=("factors",),
    bounds=(0, 1),
    trial={"samples": 32, "steps": 20},
)
def kept(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    along: str | None = None,
    span: float = 3.0,
    places: int = 7,
    samples: int = 500,
    steps: int | None = None,
) -> Score:
    """Share of pictures in which a classifier sees the same value of a factor (the first) while one latent moves."""
    if samples < 2 or places < 2 or not span > 0:
        raise UsageError(f"samples and places must be 2 or more and span above 0, not {samples}, {places} and {span}.")
    name = factor or evaluation.dataset.factor_names[0]
    network = chosen_network(evaluation, NAME, steps=steps)
    moving, correlation = latents_along(evaluation, along)
    codes = evaluation.means_at(evaluation.choose(samples))
    values = torch.linspace(-span, span, places, device=codes.device)
    own = torch.cat([predicted(network, decoded(evaluation, part), name) for part in codes.split(CHUNK)])
    same, change = [], []
    for latent in moving:
        pictures = [_set(evaluation, codes, latent, float(value)) for value in values]
        seen = torch.stack([predicted(network, each, name) for each in pictures])  # [places, rows]
        same.append((seen == own).double().mean(0))
        change.append(float((pictures[-1] - pictures[0]).abs().mean()))
    shares = torch.stack(same).cpu().numpy()  # [latents, rows]
    named = [evaluation.code_names[latent] for latent in moving]
    details = {
        "factor": name,
        "latents": dict(zip(named, shares.mean(1).tolist(), strict=True)),
        "moved": dict(zip(named, change, strict=True)),
        "correlation": correlation,
        "network": dict(network.details),
    }
    rows = shares.mean(0)
    return Score("kept", "classifier", float(rows.mean()), len(rows), of_mean(rows, (0.0, 1.0)), details=details)


def latents_along(evaluation: Evaluation, along: str | None) -> tuple[list[int], float | None]:
    """Normal coordinates that are moved, and the rank correlation of the one that goes with a factor."""
    known = normal_coordinates(evaluation)
    means = evaluation.means[:, known].double().cpu().numpy()
    if along is None:
        active = [latent for latent, column in zip(known, means.T, strict=True) if column.var() > ACTIVE]
        return active or known, None
    values = evaluation.chosen_factors([along])[0][:, 0].cpu().numpy()
    found = [rank_correlation(column, values) for column in means.T]
    best = max(range(len(known)), key=lambda j: abs(found[j]))
    return [known[best]], found[best]


def normal_coordinates(evaluation: Evaluation) -> list[int]:
    """Coordinates of the code that belong to Normal blocks."""
    kinds = [isinstance(b, Normal) for b in evaluation.space.blocks.values() for _ in range(b.width)]
    found = [column for column, normal in enumerate(kinds) if normal]
    if not found:
        raise UsageError("This score moves Normal latents, and this model has none.")
    return found


def rank_correlation(first: Any, second: Any) -> float:
    """Spearman's correlation; 0 where one of both does not vary."""
    if first.min() == first.max() or second.min() == second.max():
        return 0.0
    return float(spearmanr(first, second).statistic)


def _set(evaluation: Evaluation, codes: Tensor, latent: int, value: float) -> Tensor:
    """Pictures of codes in which one coordinate has a value."""
    moved = codes.clone()
    moved[:, latent] = value
    made = torch.cat([decoded(evaluation, part) for part in moved.split(CHUNK)])
    if not bool(made.isfinite().all()):
        raise DataError("The decoder returns NaN or infinite values.")
    return made
