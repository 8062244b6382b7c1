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

from unbraid.errors import SettingError, UsageError, unknown
from unbraid.metrics.arrays import FactorLabels, label_matrix, latent_names, plain, real_matrix
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import around
from unbraid.metrics.predictive.linear_svm import lines
from unbraid.metrics.train_test_split import (
    Compat,
    TrainTestRows,
    apart,
    is_compat,
    redrawn,
    redrawn_sheet,
    times_drawn,
)

PROMISES: dict[str, Any] = {"bounds": (0, 1), "invariant": ("order", "sign"), "noise": 0.0}


@metric("sap/linear-svm", year=2018, reference="kumar2018", needs=("factors",), **PROMISES)
def linear_svm(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    continuous: tuple[str, ...] = (),
    train: int = 10_000,
    test: int = 5_000,
    resamples: int = 200,
) -> Score:
    """Separated attribute predictability by linear support vector machines."""
    sheet = evaluation.sheet(train + test, factors)
    return sap(
        sheet.codes,
        sheet.factors,
        train=train,
        test=test,
        continuous=continuous,
        names=sheet.names,
        latents=sheet.latents,
        resamples=resamples,
        seed=evaluation.seed,
    )


@metric("sap/disentanglement_lib", year=2019, reference="locatello2019", needs=("factors",), **PROMISES)
def disentanglement_lib(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    continuous: tuple[str, ...] = (),
    train: int = 10_000,
    test: int = 5_000,
    resamples: int = 200,
) -> Score:
    """Separated attribute predictability as disentanglement_lib draws its rows."""
    sheet, split = redrawn_sheet(evaluation, train, test, factors)
    rng = np.random.default_rng(evaluation.seed)
    named = sheet.names, sheet.latents
    return _scored("disentanglement_lib", sheet.codes, sheet.factors, split, continuous, named, resamples, rng)


def sap(
    codes: Any,
    factors: Any,
    *,
    train: int = 10_000,
    test: int = 5_000,
    continuous: Sequence[str] = (),
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Separated attribute predictability of any codes [rows, latents] and factors [rows, factors].

    Where there are fewer than `train` + `test` rows, each gets its share. `continuous` names factors that are scored by
    squared correlation. `compat="disentanglement_lib"` draws both sets with replacement.

    The 95% interval is the value -+ 1.96 bootstrap standard errors over the test rows (over the training rows for
    continuous factors); the classifiers are held fixed.
    """
    rng = np.random.default_rng(seed)
    values = real_matrix("codes", codes)
    split = (redrawn if is_compat(compat) else apart)(len(values), train, test, rng)
    return _scored(compat or "linear-svm", values, factors, split, continuous, (names, latents), resamples, rng)


def _scored(
    protocol: str,
    codes: Any,
    factors: Any,
    split: TrainTestRows,
    continuous: Sequence[str],
    named: tuple[Sequence[str] | None, Sequence[str] | None],
    resamples: int,
    rng: np.random.Generator,
) -> Score:
    values = real_matrix("codes", codes)
    if values.shape[1] < 2:
        raise UsageError(f"SAP sets the best latent against the second best, but there are {values.shape[1]} latents.")
    latents = latent_names(values.shape[1], named[1])
    names, labels, real = _by_kind(factors, len(values), named[0], continuous)
    parts = {}
    if labels is not None:
        predicted = lines(values[split.train], labels.values[split.train]).predict(values[split.test])
        right = (predicted == labels.values[split.test][:, None, :]).astype(np.float32)  # [test, latents, factors]
        drawn = times_drawn(len(right), resamples, rng).astype(np.float32) @ right.reshape(len(right), -1)
        parts.update(
            _columns(labels.names, right.mean(0, dtype=float), drawn.reshape(-1, *right.shape[1:]) / len(right))
        )
    if real is not None:
        x, y = values[split.train], real[split.train]
        every = np.ones((1, len(x)), dtype=np.int64)
        counts = np.concatenate([every, times_drawn(len(x), resamples, rng)])
        squared = _squared_correlation(x, y, counts)
        parts.update(_columns([n for n in names if n in continuous], squared[0], squared[1:]))
    scores = np.stack([parts[name][0] for name in names], axis=1)  # [latents, factors]
    resampled = np.stack([parts[name][1] for name in names], axis=2)
    gaps = _gaps(scores)
    details = {
        "gaps": dict(zip(names, gaps.tolist(), strict=True)),
        "winner": {name: latents[j] for name, j in zip(names, scores.argmax(0), strict=True)},
        "scores": dict(zip(names, scores.T.tolist(), strict=True)),
        "latents": list(latents),
        "train": len(split.train),
        "test": len(split.test),
    }
    value = float(gaps.mean())
    interval = around(value, _gaps(resampled).mean(-1), bounds=(0.0, 1.0))
    return Score("sap", protocol, value, len(split.train) + len(split.test), interval, details=details)


def _by_kind(
    factors: Any, rows: int, names: Sequence[str] | None, continuous: Sequence[str]
) -> tuple[list[str], FactorLabels | None, np.ndarray | None]:
    """The names of all factors, the discrete ones as labels, the continuous ones as numbers."""
    given = plain(factors)
    given = given[:, None] if given.ndim == 1 else given
    known = list(names) if names is not None else [f"v{k}" for k in range(given.shape[1] if given.ndim == 2 else 0)]
    for name in continuous:
        if name not in known:
            raise unknown("factor", name, known, error=SettingError)
    chosen = np.array([name in continuous for name in known], dtype=bool)
    if not chosen.any() or len(chosen) != given.shape[-1] or given.ndim != 2:
        return known, label_matrix(given, rows, names), None
    if len(given) != rows:
        raise UsageError(f"There are {rows} codes, but factors of {len(given)} rows.")
    real = real_matrix("continuous factors", given[:, chosen])
    discrete = [name for name in known if name not in continuous]
    return known, label_matrix(given[:, ~chosen], rows, discrete) if discrete else None, real


def _columns(
    names: Sequence[str], scores: np.ndarray, resampled: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each factor's scores [latents] and resampled scores [resamples, latents]."""
    return {name: (scores[:, k], resampled[:, :, k]) for k, name in enumerate(names)}


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
