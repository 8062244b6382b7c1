r"""The separated attribute predictability score (kumar2018, section 3): is each factor predicted by one latent only?

    SAP = 1/K sum_k [ S_{j(k) k} - max_{j != j(k)} S_{jk} ],    j(k) = argmax_j S_{jk}

S_{jk} measures the prediction of factor k from latent j: the test accuracy of a linear support vector machine (C = .01,
balanced classes, one value against the rest), or the squared correlation for a continuous factor.

| protocol             | rows                                                                                     |
|----------------------|------------------------------------------------------------------------------------------|
| `linear-svm`         | 10,000 to train and 5,000 others to test                                                 |
| `disentanglement_lib`| 10,000 and 5,000, each drawn with replacement (locatello2019)                            |

Squared correlations are those of the training rows.

**Ceiling.** A linear classifier of one value against the rest cannot select a value between others, so the best latent
of a factor with K equally spaced values is right for few of them. A perfect code of sprites scores about .25, mostly
from factors with few values. Codes are not rescaled, and the penalty makes the score depend on their scale.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from unbraid.errors import UsageError
from unbraid.metrics.arrays import name_latents, to_factor_table, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.factor_types import parse_factors
from unbraid.metrics.intervals import resampling_interval
from unbraid.metrics.predictive.linear_svm import fit_lines
from unbraid.metrics.train_test_split import Compat, TrainTestRows, count_draws, draw_rows, is_published, split_rows

sap_metric = partial(
    code_metric,
    settings="continuous train test resamples",
    needs=("factors",),
    bounds=(0, 1),
    invariant=("order", "sign"),
    noise=0.0,
)


@sap_metric("sap/linear-svm", "Separated attribute predictability by linear support vector machines.", "kumar2018")
@sap_metric(
    "sap/disentanglement_lib",
    "Separated attribute predictability as disentanglement_lib draws its rows.",
    "locatello2019",
)
def sap(
    codes: Any,
    factors: Any,
    *,
    train: int = 10_000,
    test: int = 5_000,
    rows: TrainTestRows | None = None,
    continuous: Sequence[str] = (),
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Return the separated attribute predictability of codes [rows, latents] and factors [rows, factors].

    Fewer than `train` + `test` rows are divided in that proportion; `rows` chooses rows instead. `continuous` names
    factors that are scored by squared correlation. `compat="disentanglement_lib"` draws both sets with replacement.

    The 95% interval is the value -+ 1.96 bootstrap standard errors over the test rows (over the training rows for
    continuous factors), with the classifiers held fixed.
    """
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    if rows is None:
        rows = (draw_rows if is_published(compat) else split_rows)(len(values), train, test, rng)
    if values.shape[1] < 2:
        raise UsageError(f"SAP compares the best latent with the second best, but there are {values.shape[1]} latents.")
    latents = name_latents(values.shape[1], latents)
    columns = parse_factors(to_factor_table(factors, len(values)), names, continuous, detect=False)
    names = [column.name for column in columns]
    discrete, real = ([k for k, c in enumerate(columns) if (c.size is None) == is_real] for is_real in (False, True))
    scores = np.empty((values.shape[1], len(columns)))
    resampled = np.empty((resamples, *scores.shape), dtype=np.float64 if real else np.float32)
    if discrete:
        labels = np.stack([columns[k].values for k in discrete], axis=1)
        predicted = fit_lines(values[rows.train], labels[rows.train]).predict(values[rows.test])
        correct = (predicted == labels[rows.test][:, None, :]).astype(np.float32)  # [test, latents, factors]
        drawn = count_draws(len(correct), resamples, rng).astype(np.float32) @ correct.reshape(len(correct), -1)
        scores[:, discrete] = correct.mean(0, dtype=float)
        resampled[:, :, discrete] = drawn.reshape(-1, *correct.shape[1:]) / len(correct)
    if real:
        x, y = values[rows.train], np.stack([columns[k].values for k in real], axis=1)[rows.train]
        every = np.ones((1, len(x)), dtype=np.int64)
        counts = np.concatenate([every, count_draws(len(x), resamples, rng)])
        squared = _square_correlations(x, y, counts)
        scores[:, real], resampled[:, :, real] = squared[0], squared[1:]
    gaps = _compute_gaps(scores)
    details = {
        "gaps": dict(zip(names, gaps.tolist(), strict=True)),
        "winner": {name: latents[j] for name, j in zip(names, scores.argmax(0), strict=True)},
        "scores": dict(zip(names, scores.T.tolist(), strict=True)),
        "latents": list(latents),
        "train": len(rows.train),
        "test": len(rows.test),
    }
    value = float(gaps.mean())
    interval = resampling_interval(value, _compute_gaps(resampled).mean(-1), bounds=(0.0, 1.0))
    return Score("sap", compat or "linear-svm", value, len(rows.train) + len(rows.test), interval, details=details)


def _square_correlations(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return r^2 [draws, latents, factors] under row counts [draws, rows]; 0 for a constant."""
    weights = counts / counts.sum(1, keepdims=True)
    x, y = ((z - z.mean(0)) / np.where(np.ptp(z, 0) > 0, z.std(0) + 1e-300, 1.0) for z in (x, y))
    mean_x, mean_y = weights @ x, weights @ y
    joint = (weights @ (x[:, :, None] * y[:, None, :]).reshape(len(x), -1)).reshape(-1, x.shape[1], y.shape[1])
    covariance = joint - mean_x[:, :, None] * mean_y[:, None, :]
    variance = (weights @ (x * x) - mean_x**2)[:, :, None] * (weights @ (y * y) - mean_y**2)[:, None, :]
    return np.where(variance > 1e-12, covariance**2 / np.maximum(variance, 1e-12), 0.0).clip(0, 1)


def _compute_gaps(scores: np.ndarray) -> np.ndarray:
    """Return the best minus the second best latent [..., factors] of scores [..., latents, factors]."""
    ordered = np.sort(scores, axis=-2)
    return ordered[..., -1, :] - ordered[..., -2, :]
