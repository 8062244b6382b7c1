r"""The separated attribute predictability score (kumar2018, section 3): does one latent predict each factor alone?

    SAP = 1/K sum_k [ S_{j(k) k} - max_{j != j(k)} S_{jk} ],    j(k) = argmax_j S_{jk}

S_{jk} is how well latent j alone predicts factor k: the accuracy on test rows of a linear support vector machine
(C = .01, classes balanced, one value against the rest), or, for a continuous factor, the squared correlation.

| protocol             | rows                                                                                     |
|----------------------|------------------------------------------------------------------------------------------|
| `linear-svm`         | 10,000 to train and 5,000 other ones to test                                             |
| `disentanglement_lib`| 10,000 and 5,000, each drawn with replacement (locatello2019); squared correlations, too,|
|                      | are those of the training rows                                                           |

**Ceiling.** A line per value cannot single out a value between others, so the best latent of a factor with K ordered,
equally spaced values is right for few of them: a perfect code of sprites scores about .25, of which most is owed to
factors of few values. The codes are not rescaled, and the penalty on the weights makes the score depend on their scale.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unbraid.errors import UsageError
from unbraid.metrics.arrays import name_latents, to_factor_table, to_matrix
from unbraid.metrics.base import LOCATELLO, Evaluation, Score, metric_protocol
from unbraid.metrics.factor_types import FactorColumn, parse_factors
from unbraid.metrics.intervals import resampling_interval
from unbraid.metrics.predictive.linear_svm import fit_lines
from unbraid.metrics.train_test_split import (
    Compat,
    TrainTestRows,
    count_draws,
    draw_rows,
    draw_table,
    is_published,
    split_rows,
)

FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (0, 1), "invariant": ("order", "sign"), "noise": 0.0}


@metric_protocol(
    "sap/linear-svm",
    "Separated attribute predictability by linear support vector machines.",
    year=2018,
    reference="kumar2018",
    **FACTS,
)
@metric_protocol(
    "sap/disentanglement_lib",
    "Separated attribute predictability as disentanglement_lib draws its rows.",
    **LOCATELLO,
    **FACTS,
)
def on_run(
    evaluation: Evaluation,
    protocol: str,
    *,
    factors: tuple[str, ...] | None = None,
    continuous: tuple[str, ...] = (),
    train: int = 10_000,
    test: int = 5_000,
    resamples: int = 200,
) -> Score:
    """The SAP score of a run."""
    settings = {"continuous": continuous, "train": train, "test": test, "resamples": resamples}
    if protocol == "linear-svm":
        return evaluation.tabulate(train + test, factors).score(sap, **settings)
    table, rows = draw_table(evaluation, train, test, factors)
    return table.score(sap, rows=rows, compat="disentanglement_lib", **settings)


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
    """Separated attribute predictability of any codes [rows, latents] and factors [rows, factors].

    Where there are fewer than `train` + `test` rows, each gets its share; `rows` says which to take. `continuous` names
    factors that are scored by squared correlation. `compat="disentanglement_lib"` draws both sets with replacement.

    The 95% interval is the value -+ 1.96 bootstrap standard errors over the test rows (over the training rows for
    continuous factors); the classifiers are held fixed.
    """
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    if rows is None:
        rows = (draw_rows if is_published(compat) else split_rows)(len(values), train, test, rng)
    if values.shape[1] < 2:
        raise UsageError(f"SAP sets the best latent against the second best, but there are {values.shape[1]} latents.")
    named = name_latents(values.shape[1], latents)
    columns = parse_factors(to_factor_table(factors, len(values)), names, continuous, detect=False)
    discrete, real = ([c for c in columns if (c.size is None) == is_real] for is_real in (False, True))
    parts = {}
    if discrete:
        labels = np.stack([column.values for column in discrete], axis=1)
        predicted = fit_lines(values[rows.train], labels[rows.train]).predict(values[rows.test])
        right = (predicted == labels[rows.test][:, None, :]).astype(np.float32)  # [test, latents, factors]
        drawn = count_draws(len(right), resamples, rng).astype(np.float32) @ right.reshape(len(right), -1)
        found = right.mean(0, dtype=float), drawn.reshape(-1, *right.shape[1:]) / len(right)
        parts.update(_by_factor(discrete, *found))
    if real:
        x, y = values[rows.train], np.stack([column.values for column in real], axis=1)[rows.train]
        every = np.ones((1, len(x)), dtype=np.int64)
        counts = np.concatenate([every, count_draws(len(x), resamples, rng)])
        squared = _squared_correlation(x, y, counts)
        parts.update(_by_factor(real, squared[0], squared[1:]))
    known = [column.name for column in columns]
    scores = np.stack([parts[name][0] for name in known], axis=1)  # [latents, factors]
    gaps = _gaps(scores)
    details = {
        "gaps": dict(zip(known, gaps.tolist(), strict=True)),
        "winner": {name: named[j] for name, j in zip(known, scores.argmax(0), strict=True)},
        "scores": dict(zip(known, scores.T.tolist(), strict=True)),
        "latents": list(named),
        "train": len(rows.train),
        "test": len(rows.test),
    }
    value, resampled = float(gaps.mean()), _gaps(np.stack([parts[name][1] for name in known], axis=2)).mean(-1)
    interval = resampling_interval(value, resampled, bounds=(0.0, 1.0))
    return Score("sap", compat or "linear-svm", value, len(rows.train) + len(rows.test), interval, details=details)


def _by_factor(
    columns: Sequence[FactorColumn], scores: np.ndarray, resampled: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each factor's scores [latents] and resampled scores [resamples, latents]."""
    return {column.name: (scores[:, k], resampled[:, :, k]) for k, column in enumerate(columns)}


def _squared_correlation(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[draws, latents, factors] over rows counted so often in each draw [draws, rows]; 0 with a constant."""
    weights = counts / counts.sum(1, keepdims=True)
    x, y = ((z - z.mean(0)) / np.where(np.ptp(z, 0) > 0, z.std(0) + 1e-300, 1.0) for z in (x, y))
    mean_x, mean_y = weights @ x, weights @ y
    joint = (weights @ (x[:, :, None] * y[:, None, :]).reshape(len(x), -1)).reshape(-1, x.shape[1], y.shape[1])
    covariance = joint - mean_x[:, :, None] * mean_y[:, None, :]
    variance = (weights @ (x * x) - mean_x**2)[:, :, None] * (weights @ (y * y) - mean_y**2)[:, None, :]
    return np.where(variance > 1e-12, covariance**2 / np.maximum(variance, 1e-12), 0.0).clip(0, 1)


def _gaps(scores: np.ndarray) -> np.ndarray:
    """Best minus second best of the latents [..., latents, factors]."""
    ordered = np.sort(scores, axis=-2)
    return ordered[..., -1, :] - ordered[..., -2, :]
