r"""Factors that a stage discovers without their labels (msvae2020, appendix C).

    unseen = max_j |corr(E[z_j | x, y], v)|,    y drawn from the labels that the stage is given

for each factor v that varies and is none of those labels; z are the stage's own latents. `spearman` correlates ranks,
`pearson` the numeric values of the factor, or their indices if they are not numbers.

**Ceiling** 1. **Chance.** With N rows an independent latent has about .8 / sqrt N on average; the maximum over several
latents has more.
"""

from functools import partial
from typing import Literal

import numpy as np
import torch

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.intervals import halves_interval, measure_halves, no_interval, spread_at
from unbraid.models import as_stage

Protocol = Literal["spearman", "pearson"]

unseen_metric = partial(
    metric_protocol, reference="msvae2020", needs=("staged", "given labels", "factors"), bounds=(0, 1)
)


@unseen_metric(
    "unseen/spearman",
    "Largest absolute rank correlation of a stage's own latents with each factor whose label it is not given.",
)
@unseen_metric(
    "unseen/pearson",
    "Largest absolute correlation of a stage's own latents with each factor whose label it is not given.",
)
def on_run(evaluation: Evaluation, protocol: Protocol, *, samples: int = 10_000, resamples: int = 100) -> list[Score]:
    given, data = as_stage(evaluation.model).given_factors, evaluation.dataset
    check_at_least(2, samples=samples)
    positions, rng = evaluation.choose(samples), np.random.default_rng(evaluation.seed)
    codes = encode_given_labels(evaluation, positions)
    places = data.values_of(evaluation.rows[positions]).cpu().numpy()
    unlabelled = [k for k, factor in enumerate(data.factors) if factor.name not in given and np.ptp(places[:, k]) > 0]
    if not unlabelled:
        raise DataError(f"unseen/{protocol} needs a factor that varies and is no label of this stage.")
    scores = []
    for column in unlabelled:
        factor, known = data.factors[column], places[:, column] >= 0
        numbers = factor.values is not None and not any(isinstance(value, str) for value in factor.values)
        values = np.array(factor.values if numbers else range(factor.size), float)[places[known, column]]
        means, count = codes[known], int(known.sum())
        correlations = unseen(means, values, protocol)

        def measure(rows: np.ndarray, means: np.ndarray = means, values: np.ndarray = values) -> float:
            return float(np.abs(unseen(means[rows], values[rows], protocol)).max())

        halves = measure_halves(measure, [count], resamples, rng)
        value, details = float(np.abs(correlations).max()), {"latents": correlations.tolist(), "given": list(given)}
        interval = halves_interval(value, halves, (0.0, 1.0))
        covers = spread_at(count) if interval else no_interval("it needs resamples=2 or more")
        scores.append(
            Score("unseen", protocol, value, count, interval, part=factor.name, details=details, covers=covers)
        )
    return scores


def unseen(codes: np.ndarray, values: np.ndarray, protocol: Protocol = "spearman") -> np.ndarray:
    """Return correlations [latents] of codes [rows, latents] with values [rows]; 0 if either does not vary."""
    from scipy.stats import rankdata

    if protocol == "spearman":
        codes, values = rankdata(codes, axis=0), rankdata(values)
    codes, values = codes - codes.mean(0), values - values.mean()
    size = np.sqrt((codes**2).sum(0) * (values**2).sum())
    return np.where(size > 0, values @ codes / np.where(size > 0, size, 1.0), 0.0)


def encode_given_labels(evaluation: Evaluation, positions: torch.Tensor) -> np.ndarray:
    """Return posterior means [rows, latents] of a stage's own latents, with y from the labels of the rows."""
    model, dataset, rows = as_stage(evaluation.model), evaluation.dataset, evaluation.rows[positions]
    labels = model.label_codes(dataset)
    if labels is not None:
        labels.check_complete(rows)
    with torch.no_grad():
        posterior = model.encode(model.training_inputs(dataset, rows))
        return model.space.last_stage.center(posterior).double().cpu().numpy()
