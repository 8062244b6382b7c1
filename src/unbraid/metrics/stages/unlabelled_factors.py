r"""What a stage found out that no label said (msvae2020, appendix C): its latents against the factors left over.

    unseen = max_j |corr(E[z_j | x, y], v)|,    y drawn from the labels that the stage was given

for each factor v that is none of those labels and varies, z the stage's own latents. `spearman` correlates ranks,
`pearson` the numbers that the factor's values stand for, or their places where they are no numbers.

**Ceiling** 1. **Chance.** With N rows a latent that knows nothing has about .8 / sqrt N on average; the largest of
several has more.
"""

from typing import Any, Literal

import numpy as np
import torch

from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.intervals import resampling_interval
from unbraid.models import as_stage

Protocol = Literal["spearman", "pearson"]

FACTS: dict[str, Any] = {
    "reference": "msvae2020",
    "needs": ("staged", "given labels", "factors"),
    "bounds": (0, 1),
}


@metric_protocol(
    "unseen/spearman",
    "Rank correlation of a stage's own latents with each factor that it was not given, the largest by size.",
    **FACTS,
)
@metric_protocol(
    "unseen/pearson",
    "Correlation of a stage's own latents with each factor that it was not given, the largest by size.",
    **FACTS,
)
def on_run(evaluation: Evaluation, protocol: Protocol, *, samples: int = 10_000, resamples: int = 100) -> list[Score]:
    """Correlations of a stage's own latents with factors that it was not given."""
    given, data = as_stage(evaluation.model).given_factors, evaluation.dataset
    check_at_least(2, samples=samples)
    positions, rng = evaluation.choose(samples), np.random.default_rng(evaluation.seed)
    codes = given_means(evaluation, positions)
    places = data.values_of(evaluation.rows[positions]).cpu().numpy()
    left = [k for k, factor in enumerate(data.factors) if factor.name not in given and np.ptp(places[:, k]) > 0]
    if not left:
        raise DataError(f"unseen/{protocol} needs a factor that is no label of this stage, and varies.")
    made = []
    for column in left:
        factor, known = data.factors[column], places[:, column] >= 0
        numbers = factor.values is not None and not any(isinstance(value, str) for value in factor.values)
        values = np.array(factor.values if numbers else range(factor.size), float)[places[known, column]]
        own, count = codes[known], int(known.sum())
        each = unseen(own, values, protocol)
        drawn = [
            np.abs(unseen(own[chosen], values[chosen], protocol)).max()
            for chosen in rng.integers(count, size=(resamples, count))
        ]
        value = float(np.abs(each).max())
        interval, details = (
            resampling_interval(value, drawn, (0.0, 1.0)),
            {"latents": each.tolist(), "given": list(given)},
        )
        made.append(Score("unseen", protocol, value, count, interval, part=factor.name, details=details))
    return made


def unseen(codes: np.ndarray, values: np.ndarray, protocol: Protocol = "spearman") -> np.ndarray:
    """Correlations [latents] of codes [rows, latents] with values [rows]; 0 where one of both does not vary."""
    from scipy.stats import rankdata

    if protocol == "spearman":
        codes, values = rankdata(codes, axis=0), rankdata(values)
    codes, values = codes - codes.mean(0), values - values.mean()
    size = np.sqrt((codes**2).sum(0) * (values**2).sum())
    return np.where(size > 0, values @ codes / np.where(size > 0, size, 1.0), 0.0)


def given_means(evaluation: Evaluation, positions: torch.Tensor) -> np.ndarray:
    """Means [rows, latents] of a stage's own latents at some of the rows, y being that of their labels."""
    model, dataset, rows = as_stage(evaluation.model), evaluation.dataset, evaluation.rows[positions]
    labels = model.label_codes(dataset)
    if labels is not None:
        labels.check_complete(rows)
    with torch.no_grad():
        posterior = model.encode(model.training_inputs(dataset, rows))
        return model.space.last_stage.center(posterior).double().cpu().numpy()
