r"""Disentanglement, completeness and informativeness (eastwood2018): importances of codes to a predictor.

A predictor of each of K factors from D codes gives the importance R_ij of code i for factor j. Then

    disentanglement  D_i = 1 - H_K(R_i. / sum_j R_ij),    D = sum_i w_i D_i,    w_i = sum_j R_ij / sum_ij R_ij
    completeness     C_j = 1 - H_D(R_.j / sum_i R_ij),    C = sum_j u_j C_j,    u_j = sum_i R_ij / sum_ij R_ij
    informativeness  I = 1/K sum_j I_j,    I_j = accuracy of the predictor on test rows

with entropies to base K and D. A code is disentangled if it matters for one factor only, and a factor is complete if
one code holds it. For a real factor, I_j is R^2, at least 0; `error` in the details is the error relative to predicting
the mean, sqrt(1 - R^2), which eastwood2018 prints. (u_j is 1 / K, as in eastwood2018, for all predictors but `lasso`,
whose weights need not have the same sum for each factor.)

All three depend on the predictor (see `predictors`), so its name is the protocol. The protocol `disentanglement_lib` is
`gbt` on rows drawn with repetition, with 1e-11 added to every importance.

With one factor D is always 1, and with one code C is. If no code has any importance, both are 0.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import find_device, name_latents, to_factor_table, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.factor_types import FactorColumn, parse_factors
from unbraid.metrics.intervals import FIT_ONCE, halves_share_interval, measure_halves, no_interval, spread_at
from unbraid.metrics.levels import share_of_most_frequent
from unbraid.metrics.predictive.booster import FactorFit, Target
from unbraid.metrics.predictive.predictors import Predictor, Problem, fit, rescale
from unbraid.metrics.train_test_split import Compat, TrainTestRows, draw_rows, is_published, split_rows

PERFECT = {"disentanglement": 1.0, "completeness": 1.0, "informativeness": 1.0}
COSTLY: dict[str, Any] = {"costly": True, "trial": {"train": 60, "test": 30}, "perfect": PERFECT}
NOISE = {"disentanglement": 0.0, "completeness": 0.0}

MAX_KURTOSIS = 12.0
"""Kurtosis of a latent above which halves of the rows misjudge the spread of R^2. Normal codes have 3."""

FAR_ROWS = "a few rows far from all others decide a linear regression"
IMPORTANCES = "importances jump between latents from fit to fit, and halves of the rows misjudge by how much"

dci_metric = partial(code_metric, levels=False, needs=("factors",), bounds=(0, 1))
tree_metric = partial(
    dci_metric, reference="eastwood2018", settings="continuous train test resamples", invariant=("scale",)
)


@tree_metric(
    "dci/gbt",
    "DCI by scikit-learn's gradient boosting, which takes minutes at full size.",
    core_seconds=300.0,
    **COSTLY,
)
@tree_metric(
    "dci/booster",
    "DCI by gradient boosting as in dci/gbt, of binned codes and all trees at once.",
    core_seconds=8.4,
    prefers_gpu=True,
    perfect=PERFECT,
    noise=NOISE,
)
@tree_metric(
    "dci/random-forest",
    "DCI by a random forest: scikit-learn's, or on a GPU our own, with other random numbers.",
    core_seconds=13.6,
    prefers_gpu=True,
    perfect={"informativeness": 1.0},
    noise=NOISE,
)
@dci_metric(
    "dci/lasso",
    "DCI by L1-penalised linear regression on factor values; `alpha` is cross-validated by default.",
    "eastwood2018",
    settings="alpha train test resamples",
    core_seconds=0.7,
    invariant=("order", "sign", "scale"),
    perfect=PERFECT,
    noise={"informativeness": 0.0},
)
@dci_metric(
    "dci/disentanglement_lib",
    "DCI as disentanglement_lib computes it, which takes minutes at full size.",
    "locatello2019",
    settings="train test resamples",
    **COSTLY,
)
def dci(
    codes: Any,
    factors: Any,
    *,
    predictor: Predictor = "booster",
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    continuous: Sequence[str] = (),
    train: int = 10_000,
    test: int = 5_000,
    rows: TrainTestRows | None = None,
    alpha: float | None = None,
    resamples: int | None = None,
    seed: int = 0,
    compat: Compat | None = None,
) -> list[Score]:
    """Return disentanglement, completeness and informativeness of codes [rows, latents] and factors [rows, factors].

    The predictor learns from `train` random rows and is tested on `test` others; fewer rows are divided in the same
    proportion, and `rows` chooses them instead. Factors named in `continuous`, and those with more than 100 values that
    are not all whole numbers, are real. `alpha` is the penalty of `lasso` (None: cross-validated). `compat` overrides
    the predictor.

    The 95% interval of informativeness is for the mean over draws of as many rows, from fits to `resamples` random
    halves of both sets (None: 10 for `lasso`, none for the others, whose fits take long). The other two have none.
    """
    values, table = to_matrix("codes", codes), to_factor_table(factors, len(codes))
    if is_published(compat) and (continuous or predictor not in ("booster", "gbt")):
        raise UsageError(f"compat={compat} predicts with gbt, and all factors as classes.")
    columns = parse_factors(table, names, continuous, detect=compat is None)
    if rows is None:
        rows = (draw_rows if compat else split_rows)(len(values), train, test, np.random.default_rng(seed))
    if not values.shape[1]:
        raise UsageError("DCI needs codes with at least one latent.")
    named = name_latents(values.shape[1], latents)
    used = predictor if compat is None else "gbt"
    task = _Task(values, columns, *rows, used, compat, seed, alpha, find_device(codes))
    resamples = (10 if used == "lasso" else 0) if resamples is None else resamples
    fits, why = _fit_factors(task), FIT_ONCE
    if used == "lasso" and measure_kurtosis(values).max() > MAX_KURTOSIS:
        resamples, why = 0, FAR_ROWS
    halves = _measure_halves(task, fits, resamples, np.random.default_rng(seed))
    return _build_scores(task, fits, named, halves, why)


class _Task(NamedTuple):
    """Codes [rows, latents] and factors of all rows, the rows to train and to test on, and the predictor."""

    codes: np.ndarray
    factors: list[FactorColumn]
    train: np.ndarray
    test: np.ndarray
    predictor: Predictor
    compat: Compat | None
    seed: int
    alpha: float | None
    device: torch.device
    chosen_alphas: Sequence[float | None] = ()

    def is_real(self, factor: FactorColumn) -> bool:
        return factor.size is None or self.predictor == "lasso"


def measure_kurtosis(codes: np.ndarray) -> np.ndarray:
    """Return the mean fourth power of each standardised latent [latents], 0 for a constant one."""
    centred = codes - codes.mean(0)
    variance = (centred**2).mean(0)
    return np.where(variance > 0, (centred**4).mean(0) / np.where(variance > 0, variance, 1.0) ** 2, 0.0)


def _measure_halves(task: _Task, fits: Sequence[FactorFit], resamples: int, rng: np.random.Generator) -> list[float]:
    """Return the informativeness of fits to random halves of the training rows, on halves of the test rows.

    A cross-validated penalty stays as all rows chose it.
    """
    task = task._replace(chosen_alphas=[fit.alpha for fit in fits])

    def measure(of_train: np.ndarray, of_test: np.ndarray) -> float:
        some = task._replace(train=task.train[of_train], test=task.test[of_test])
        return _measure_informativeness(some, _fit_factors(some))[0]

    sets = [len(task.train), len(task.test)]
    return measure_halves(measure, sets, resamples, rng, threads=False)  # the predictors have threads of their own


def _build_scores(
    task: _Task, fits: Sequence[FactorFit], latents: Sequence[str], halves: Sequence[float], why: str
) -> list[Score]:
    importance = np.stack([fit.importance for fit in fits], axis=1)  # [latents, factors]
    names = [factor.name for factor in task.factors]
    shared: dict[str, Any] = {
        "importance": dict(zip(names, importance.T.tolist(), strict=True)),
        "latents": list(latents),
        "split": [len(task.train), len(task.test)],
    }
    if task.predictor == "random-forest":
        shared["device"] = task.device.type  # a GPU grows other trees
    if not importance.any():
        shared["note"] = "no latent has any importance, so disentanglement and completeness are 0"
    smallest = 0.0 if task.compat is None else 1e-11
    protocol, samples = task.compat or task.predictor, len(task.train) + len(task.test)
    informativeness, of_informativeness = _measure_informativeness(task, fits)
    interval = halves_share_interval(informativeness, halves, len(task.test))
    none, covers = (None, no_interval(IMPORTANCES)), spread_at(samples) if interval else no_interval(why)
    parts = [
        ("disentanglement", *_measure_concentration(importance, latents, smallest), *none),
        ("completeness", *_measure_concentration(importance.T, names, smallest), *none),
        ("informativeness", informativeness, of_informativeness, interval, covers),
    ]
    return [
        Score("dci", protocol, value, samples, ends, part, task.predictor, details={**details, **shared}, covers=covers)
        for part, value, details, ends, covers in parts
    ]


def _measure_concentration(
    importance: np.ndarray, names: Sequence[str], smallest: float
) -> tuple[float, dict[str, Any]]:
    """Return the mean over rows, weighted by their sums, of 1 - the entropy of a row's shares, and its details."""
    sums, total, outcomes = importance.sum(1), importance.sum(), importance.shape[1]
    raised = importance + smallest
    shares = raised / np.where(raised.sum(1) > 0, raised.sum(1), 1.0)[:, None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1) / (np.log(outcomes) if outcomes > 1 else 1.0)
    each = np.where(sums > 0, np.clip(1 - entropy, 0.0, 1.0), 0.0)
    weights = sums / total if total > 0 else np.full(len(sums), 1 / len(sums))
    details = {
        "each": dict(zip(names, each.tolist(), strict=True)),
        "weights": dict(zip(names, weights.tolist(), strict=True)),
    }
    return float(np.clip((each * weights).sum(), 0.0, 1.0)), details


def _measure_informativeness(task: _Task, fits: Sequence[FactorFit]) -> tuple[float, dict[str, Any]]:
    """Return the mean accuracy or R^2 on the test rows, and its details."""
    by_factor = []
    details: dict[str, Any] = {"each": {}, "train": {}, "measure": {}, "error": {}}
    for factor, fitted in zip(task.factors, fits, strict=True):
        real = task.is_real(factor)
        truth = factor.numbers if real else factor.values
        by_factor.append(_rate_rows(fitted.test, truth[task.test], real))
        details["each"][factor.name] = float(by_factor[-1].mean())
        if fitted.train is not None:
            details["train"][factor.name] = float(_rate_rows(fitted.train, truth[task.train], real).mean())
        details["measure"][factor.name] = "R2" if real else "accuracy"
        if real:  # root mean square error over that of predicting the mean
            error, spread = np.sqrt(np.mean((fitted.test - truth[task.test]) ** 2)), truth[task.test].std()
            details["error"][factor.name] = float(error / spread) if spread > 0 else None
    by_row = np.mean(by_factor, axis=0)
    classes = [factor.values[task.test] for factor in task.factors if not task.is_real(factor)]
    details["chance"] = share_of_most_frequent(np.stack(classes, 1)) * len(classes) / len(by_factor) if classes else 0.0
    if len(details["train"]) == len(by_factor):
        details["train_mean"] = float(np.mean(list(details["train"].values())))
    return float(np.mean(by_row)), details


def _rate_rows(predicted: np.ndarray, truth: np.ndarray, real: bool) -> np.ndarray:
    """Return numbers [rows] whose mean is the accuracy, or R^2 if it is above 0, else 0."""
    if not real:
        return (predicted == truth).astype(np.float64)
    spread = truth.var()
    rows = 1 - (predicted - truth) ** 2 / (spread if spread > 0 else 1.0)
    return rows if spread > 0 and rows.mean() > 0 else np.zeros(len(rows))


def _fit_factors(task: _Task) -> list[FactorFit]:
    """Return importances and predictions for the test and training rows of every factor."""
    codes, train, weights, copies = task.codes, task.train, None, np.arange(len(task.train))
    if task.compat is None:
        codes = rescale(codes)
    else:
        if np.abs(codes).max(initial=0.0) > np.finfo(np.float32).max:
            raise DataError("codes are too large for float32, which scikit-learn uses.")
        train, weights, copies = _merge_repeated_rows(task)
    classes = [None if task.is_real(f) else np.unique(f.values[train], return_inverse=True) for f in task.factors]
    alphas = task.chosen_alphas or [None] * len(classes)
    targets = [
        Target(factor.numbers[train], None, alpha) if present is None else Target(present[1], len(present[0]))
        for factor, present, alpha in zip(task.factors, classes, alphas, strict=True)
    ]
    problem = Problem(codes[train], codes[task.test], targets, weights, task.seed, task.device, task.alpha)
    fits = []
    for fitted, present in zip(fit(task.predictor, problem), classes, strict=True):
        test, on_train = fitted.test, None if fitted.train is None else fitted.train[copies]
        if present is not None:  # training rows may hold some of the factor's values only
            test, on_train = present[0][test], None if on_train is None else present[0][on_train]
        fits.append(FactorFit(np.abs(fitted.importance), test, on_train, fitted.alpha))
    return fits


def _merge_repeated_rows(task: _Task) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return the different training rows, how often each counts, and the position of each drawn row among them.

    Ten thousand rows drawn with repetition from a few hundred are those few hundred with weights.
    """
    table = np.column_stack([task.codes, *(factor.values for factor in task.factors)])[task.train]
    _, first, copies, counts = np.unique(table, axis=0, return_index=True, return_inverse=True, return_counts=True)
    if 2 * len(first) > len(table):
        return task.train, None, np.arange(len(table))
    return task.train[first], counts.astype(np.float64), copies.reshape(-1)
