"""Predictors of factors from codes, with the importance of each code.

| predictor       | model                                                                | importance of a code     |
|-----------------|----------------------------------------------------------------------|--------------------------|
| `gbt`           | scikit-learn's gradient boosting with its defaults (locatello2019)   | drop of squared error    |
| `booster`       | the same algorithm with binned codes, all trees at once, CPU or CUDA | drop of squared error    |
| `random-forest` | scikit-learn's random forest with its defaults (eastwood2018), or    | drop of impurity         |
|                 | `forest` on CUDA: the same algorithm with other random numbers       |                          |
| `lasso`         | linear regression with an L1 penalty, standardised (eastwood2018)    | absolute weight          |

Discrete factors get a classifier, real factors the regressor of the same family. `lasso` takes every factor as a
number. The targets are shared among threads (`count_python_threads`).
"""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from unbraid.errors import UsageError, unknown
from unbraid.metrics.predictive.booster import FactorFit, Target, boost
from unbraid.metrics.predictive.forest import can_grow, grow_forest
from unbraid.metrics.predictive.lasso_penalty import FOLDS, choose_penalty
from unbraid.progress import track
from unbraid.threads import count_python_threads

Predictor = Literal["gbt", "booster", "random-forest", "lasso"]

TOLERANCE = 1e-9


class Problem(NamedTuple):
    """Codes to train and to test on [rows, codes], targets and weights of the training rows, and settings.

    `alpha` is the penalty of `lasso`, `trees` the size of a `random-forest`.
    """

    train: np.ndarray
    test: np.ndarray
    targets: Sequence[Target]
    weights: np.ndarray | None = None
    seed: int = 0
    device: torch.device | str = "cpu"
    alpha: float | None = None
    trees: int = 100


def fit(predictor: Predictor, problem: Problem) -> list[FactorFit]:
    """Return importances and predictions for every target.

    If the training rows hold only one class, or no code varies in them, there is nothing to learn: the most frequent
    class or the mean is predicted, and all importances are 0.
    """
    if predictor not in get_args(Predictor):
        raise unknown("predictor", predictor, get_args(Predictor))
    fits = [_predict_constant(problem, target) for target in problem.targets]
    codes_vary = bool((problem.train != problem.train[0]).any())
    learnable = [k for k, t in enumerate(problem.targets) if codes_vary and bool((t.values != t.values[0]).any())]
    if learnable:
        chosen = problem._replace(targets=[problem.targets[k] for k in learnable])
        with warnings.catch_warnings():  # about few rows per class, and exact fits that no relative tolerance meets
            warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
            for k, fitted in zip(learnable, _PREDICTORS[predictor](chosen), strict=True):
                fits[k] = fitted
    return fits


def rescale(codes: np.ndarray) -> np.ndarray:
    """Return codes with about unit spread, scaled by powers of two, which keep every digit.

    scikit-learn's trees work in float32 and ignore differences below 1e-7.
    """
    codes = np.ldexp(codes, -np.frexp(np.abs(codes).max(0))[1])
    far = np.abs(codes.mean(0)) > 64 * codes.std(0)
    codes = codes - np.where(far, codes.mean(0), 0.0)
    return np.ldexp(codes, -np.frexp(codes.std(0))[1])


def gbt(problem: Problem) -> list[FactorFit]:
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    def fit_one(target: Target) -> FactorFit:
        make = GradientBoostingRegressor if target.size is None else GradientBoostingClassifier
        model = make(random_state=problem.seed).fit(problem.train, target.values, sample_weight=problem.weights)
        return FactorFit(model.feature_importances_, model.predict(problem.test), model.predict(problem.train))

    return _fit_each(problem, fit_one)


def random_forest(problem: Problem) -> list[FactorFit]:
    """Fit random forests, on CUDA by our kernels, else scikit-learn's.

    With more threads than targets, several threads share a forest of scikit-learn.
    """
    train, targets, test, device = problem.train, problem.targets, problem.test, problem.device
    if problem.weights is None and can_grow(train, targets, test, trees=problem.trees, device=device):
        return grow_forest(train, targets, test, trees=problem.trees, seed=problem.seed, device=device)
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    share = math.ceil(count_python_threads() / len(problem.targets))

    def fit_one(target: Target) -> FactorFit:
        make = RandomForestRegressor if target.size is None else RandomForestClassifier
        forest = make(problem.trees, random_state=problem.seed, n_jobs=share).fit(problem.train, target.values)
        forest.set_params(n_jobs=1)  # threads add votes in any order, which would decide ties
        return FactorFit(forest.feature_importances_, forest.predict(problem.test))

    return _fit_each(problem, fit_one)


def booster(problem: Problem) -> list[FactorFit]:
    if problem.weights is not None:
        raise UsageError("The booster takes no weights.")
    return boost(problem.train, problem.targets, problem.test, seed=problem.seed, device=problem.device)


def lasso(problem: Problem) -> list[FactorFit]:
    """Fit L1-penalised regressions on standardised codes and targets; without `alpha`, cross-validate the penalty."""
    mean, deviation = problem.train.mean(0), problem.train.std(0)
    deviation[deviation <= 0] = 1.0
    train, test = ((codes - mean) / deviation for codes in (problem.train, problem.test))

    def fit_one(target: Target) -> FactorFit:
        numbers = target.values.astype(np.float64)
        centre, spread = numbers.mean(), numbers.std()
        standard = (numbers - centre) / spread
        alpha = target.alpha if problem.alpha is None else problem.alpha
        if alpha is None and len(train) >= FOLDS:
            alpha = choose_penalty(train, standard)
        model = _build_lasso(alpha, len(train)).fit(train, standard)
        on_test, on_train = (centre + spread * model.predict(codes) for codes in (test, train))
        return FactorFit(np.abs(model.coef_), on_test, on_train, getattr(model, "alpha_", alpha))

    return _fit_each(problem, fit_one)


_PREDICTORS: dict[str, Callable[[Problem], list[FactorFit]]] = {
    "gbt": gbt,
    "booster": booster,
    "random-forest": random_forest,
    "lasso": lasso,
}


def _fit_each(problem: Problem, fit_one: Callable[[Target], FactorFit]) -> list[FactorFit]:
    """Fit every target in threads, the longest first, so that none of them is left for the end."""
    workers = min(count_python_threads(), os.cpu_count() or 1, len(problem.targets))
    order = sorted(range(len(problem.targets)), key=lambda k: -problem.targets[k].trees)
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(fit_one, [problem.targets[k] for k in order])
        fits = dict(zip(track("predicting factors", order), results, strict=True))
    return [fits[k] for k in range(len(order))]


def _build_lasso(alpha: float | None, rows: int) -> Any:
    from sklearn.linear_model import Lasso, LassoCV

    if alpha is not None and alpha < 0:
        raise UsageError(f"alpha must be at least 0, not {alpha}.")
    if alpha is None and rows < FOLDS:
        raise UsageError(f"Cross-validation needs at least {FOLDS} training rows, not {rows}; set alpha.")
    exact = {"tol": TOLERANCE, "max_iter": 10_000}  # otherwise the order of the codes changes the third digit
    return LassoCV(cv=FOLDS, **exact) if alpha is None else Lasso(alpha=alpha, **exact)


def _predict_constant(problem: Problem, target: Target) -> FactorFit:
    if target.size is None:
        constant = np.average(target.values, weights=problem.weights)
    else:
        constant = np.bincount(target.values, weights=problem.weights).argmax()
    on_test, on_train = (np.full(len(codes), constant) for codes in (problem.test, problem.train))
    return FactorFit(np.zeros(problem.train.shape[1]), on_test, on_train)
