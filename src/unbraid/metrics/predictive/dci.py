r"""Disentanglement, completeness and informativeness (eastwood2018): a predictor of the factors, and what it looked at.

A predictor of each of K factors from D codes says how important code i was for factor j: R_ij. Then

    disentanglement  D_i = 1 - H_K(R_i. / sum_j R_ij),    D = sum_i w_i D_i,    w_i = sum_j R_ij / sum_ij R_ij
    completeness     C_j = 1 - H_D(R_.j / sum_i R_ij),    C = sum_j u_j C_j,    u_j = sum_i R_ij / sum_ij R_ij
    informativeness  I = 1/K sum_j I_j,    I_j = accuracy of the predictor on other rows than it learnt from

with entropies to base K and D: a code is disentangled if it matters for one factor only, and a factor is complete if it
is held by one code. Of a real factor, I_j is R^2, at least 0; eastwood2018 prints the error relative to guessing the
mean, sqrt(1 - R^2), which is in the details. (u_j is 1 / K, as in eastwood2018, for all predictors but `lasso`, whose
weights need not add up to the same for each factor.)

All three numbers depend on the predictor (see `predictors`), so it is part of the name of the score. The
protocol `disentanglement_lib` is `gbt` on rows drawn with repetition, with 1e-11 added to every importance.

With one factor, D is 1 of necessity, and with one code C is; where no code has any importance, both are 0.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import find_device, name_latents, to_factor_table, to_matrix
from unbraid.metrics.base import LOCATELLO, Evaluation, Score, metric, metric_protocol
from unbraid.metrics.factor_types import FactorColumn, parse_factors
from unbraid.metrics.intervals import mean_interval
from unbraid.metrics.predictive.booster import FactorFit, Target
from unbraid.metrics.predictive.predictors import Predictor, Problem, fit, rescale
from unbraid.metrics.train_test_split import Compat, TrainTestRows, draw_rows, draw_table, is_published, split_rows

FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (0, 1)}
PERFECT = {"disentanglement": 1.0, "completeness": 1.0, "informativeness": 1.0}
COSTLY: dict[str, Any] = {"costly": True, "trial": {"train": 60, "test": 30}, "perfect": PERFECT}
NOISE: dict[str, Any] = {"noise": {"disentanglement": 0.0, "completeness": 0.0}}
TREES: dict[str, Any] = {"year": 2018, "reference": "eastwood2018", "invariant": ("scale",), **FACTS}


@metric_protocol(
    "dci/gbt",
    "DCI by scikit-learn's gradient boosting, which takes minutes at full size.",
    cpu_only=True,
    **COSTLY,
    **TREES,
)
@metric_protocol(
    "dci/booster",
    "DCI by gradient boosting as in dci/gbt, of binned codes and all trees at once.",
    perfect=PERFECT,
    **NOISE,
    **TREES,
)
@metric_protocol(
    "dci/random-forest",
    "DCI by scikit-learn's random forest.",
    cpu_only=True,
    perfect={"informativeness": 1.0},
    **NOISE,
    **TREES,
)
def by_trees(
    evaluation: Evaluation,
    protocol: Predictor,
    *,
    factors: tuple[str, ...] | None = None,
    continuous: tuple[str, ...] = (),
    train: int = 10_000,
    test: int = 5_000,
) -> list[Score] | partial[list[Score]]:
    """DCI by one of the predictors that are trees."""
    table = evaluation.tabulate(train + test, factors)
    found = table.score if protocol == "booster" else table.defer
    return found(dci, predictor=protocol, continuous=continuous, train=train, test=test)


@metric(
    "dci/lasso",
    year=2018,
    reference="eastwood2018",
    invariant=("order", "sign", "scale"),
    perfect=PERFECT,
    noise={"informativeness": 0.0},
    **FACTS,
)
def linear(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    alpha: float | None = None,
    train: int = 10_000,
    test: int = 5_000,
) -> list[Score]:
    """DCI by L1-penalised linear regression on factor values; `alpha` is cross-validated unless given."""
    return evaluation.tabulate(train + test, factors).score(dci, predictor="lasso", train=train, test=test, alpha=alpha)


@metric("dci/disentanglement_lib", **LOCATELLO, **FACTS, **COSTLY)
def disentanglement_lib(
    evaluation: Evaluation, *, factors: tuple[str, ...] | None = None, train: int = 10_000, test: int = 5_000
) -> list[Score]:
    """DCI as disentanglement_lib computes it, which takes minutes at full size."""
    table, rows = draw_table(evaluation, train, test, factors)
    return table.score(dci, rows=rows, compat="disentanglement_lib")


def dci(
    codes: Any,
    factors: Any,
    *,
    predictor: Predictor = "random-forest",
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    continuous: Sequence[str] = (),
    train: int = 10_000,
    test: int = 5_000,
    rows: TrainTestRows | None = None,
    alpha: float | None = None,
    seed: int = 0,
    compat: Compat | None = None,
) -> list[Score]:
    """Disentanglement, completeness and informativeness of any codes [rows, latents] and factors [rows, factors].

    The predictor learns from `train` random rows and is asked about `test` others, or about those that `rows` names;
    fewer rows are divided in the same proportion. Factors named in `continuous`, and those of more than 100 values that
    are not all whole numbers, are real ones. `alpha` is the penalty of `lasso` (None: cross-validated). `compat`
    overrides the predictor.

    The 95% interval of informativeness is that of a mean over the test rows; the other two have none.
    """
    values, table = to_matrix("codes", codes), to_factor_table(factors, len(codes))
    if is_published(compat) and (continuous or predictor not in ("random-forest", "gbt")):
        raise UsageError(f"compat={compat} predicts with gbt, and all factors as classes.")
    columns = parse_factors(table, names, continuous, detect=compat is None)
    if rows is None:
        rows = (draw_rows if compat else split_rows)(len(values), train, test, np.random.default_rng(seed))
    how = predictor if compat is None else "gbt", compat, seed, alpha, find_device(codes)
    return _scores(_Task(values, columns, name_latents(values.shape[1], latents), *rows, *how))


class _Task(NamedTuple):
    """Codes [rows, latents] and factors of all rows, which rows are learnt from and asked about, and how."""

    codes: np.ndarray
    factors: list[FactorColumn]
    latents: Sequence[str]
    learnt: np.ndarray
    asked: np.ndarray
    predictor: Predictor
    compat: Compat | None
    seed: int
    alpha: float | None
    device: torch.device

    def real(self, factor: FactorColumn) -> bool:
        """Whether a factor is predicted as a number."""
        return factor.size is None or self.predictor == "lasso"


def _scores(task: _Task) -> list[Score]:
    if len(task.learnt) < 2 or len(task.asked) < 1:
        raise DataError(f"DCI cannot learn from {len(task.learnt)} rows and be asked about {len(task.asked)}.")
    if not task.latents:
        raise UsageError("DCI needs codes of at least one latent.")
    fits = _fits(task)
    importance = np.stack([fit.importance for fit in fits], axis=1)  # [latents, factors]
    names = [factor.name for factor in task.factors]
    shared: dict[str, Any] = {
        "importance": dict(zip(names, importance.T.tolist(), strict=True)),
        "latents": list(task.latents),
        "split": [len(task.learnt), len(task.asked)],
    }
    if not importance.any():
        shared["note"] = "no latent has any importance, so disentanglement and completeness are 0"
    smallest = 0.0 if task.compat is None else 1e-11
    found = [
        ("disentanglement", *_concentration(importance, task.latents, smallest), None),
        ("completeness", *_concentration(importance.T, names, smallest), None),
        ("informativeness", *_informativeness(task, fits)),
    ]
    protocol, samples = task.compat or task.predictor, len(task.learnt) + len(task.asked)
    return [
        Score("dci", protocol, value, samples, interval, part, task.predictor, details={**details, **shared})
        for part, value, details, interval in found
    ]


def _concentration(importance: np.ndarray, names: Sequence[str], smallest: float) -> tuple[float, dict[str, Any]]:
    """Mean over the rows of a matrix, weighted by their sums, of 1 - the entropy of a row's shares."""
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


def _informativeness(
    task: _Task, fits: Sequence[FactorFit]
) -> tuple[float, dict[str, Any], tuple[float, float] | None]:
    """Mean accuracy or R^2 on the rows asked about, its details, and its interval."""
    rows = []
    details: dict[str, Any] = {"each": {}, "train": {}, "measure": {}, "error": {}}
    for factor, made in zip(task.factors, fits, strict=True):
        real = task.real(factor)
        truth = factor.numbers if real else factor.values
        rows.append(_quality(made.test, truth[task.asked], real))
        details["each"][factor.name] = float(rows[-1].mean())
        if made.train is not None:
            details["train"][factor.name] = float(_quality(made.train, truth[task.learnt], real).mean())
        details["measure"][factor.name] = "R2" if real else "accuracy"
        if real:  # root mean square error over that of guessing the mean, where the rows asked about differ
            error, spread = np.sqrt(np.mean((made.test - truth[task.asked]) ** 2)), truth[task.asked].std()
            details["error"][factor.name] = float(error / spread) if spread > 0 else None
    each_row = np.mean(rows, axis=0)
    if len(details["train"]) == len(rows):
        details["train_mean"] = float(np.mean(list(details["train"].values())))
    return float(np.mean(each_row)), details, mean_interval(each_row, bounds=(0.0, 1.0))


def _quality(predicted: np.ndarray, truth: np.ndarray, real: bool) -> np.ndarray:
    """Numbers [rows] whose mean is the accuracy, or R^2 if that is above 0, else 0."""
    if not real:
        return (predicted == truth).astype(np.float64)
    spread = truth.var()
    rows = 1 - (predicted - truth) ** 2 / (spread if spread > 0 else 1.0)
    return rows if spread > 0 and rows.mean() > 0 else np.zeros(len(rows))


def _fits(task: _Task) -> list[FactorFit]:
    """Every factor's importances and its predictions for the rows learnt from and asked about."""
    learnt, weights, copies = task.learnt, None, np.arange(len(task.learnt))
    if task.compat is None:
        codes = rescale(task.codes)
    else:
        codes = task.codes
        if np.abs(codes).max(initial=0.0) > np.finfo(np.float32).max:
            raise DataError("codes are too large for float32, in which scikit-learn works.")
        learnt, weights, copies = _merged(task)
    classes = [None if task.real(f) else np.unique(f.values[learnt], return_inverse=True) for f in task.factors]
    targets = [
        Target(factor.numbers[learnt], None) if found is None else Target(found[1], len(found[0]))
        for factor, found in zip(task.factors, classes, strict=True)
    ]
    problem = Problem(codes[learnt], codes[task.asked], targets, weights, task.seed, task.device, task.alpha)
    made = []
    for result, found in zip(fit(task.predictor, problem), classes, strict=True):
        train = None if result.train is None else _values(result.train[copies], found)
        made.append(FactorFit(np.abs(result.importance), _values(result.test, found), train))
    return made


def _values(predicted: np.ndarray, found: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Class numbers of the factor, of which training may have met some only; real values as they are."""
    return predicted if found is None else found[0][predicted]


def _merged(task: _Task) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Rows to learn from, how often each counts, and which of them each drawn row is.

    Ten thousand rows drawn with repetition from a few hundred are those few hundred with weights.
    """
    told = np.column_stack([task.codes, *(factor.values for factor in task.factors)])[task.learnt]
    _, first, copies, counts = np.unique(told, axis=0, return_index=True, return_inverse=True, return_counts=True)
    if 2 * len(first) > len(told):
        return task.learnt, None, np.arange(len(told))
    return task.learnt[first], counts.astype(np.float64), copies.reshape(-1)
