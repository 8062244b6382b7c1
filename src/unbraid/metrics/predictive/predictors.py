"""Predictors of factors from codes: each says how important every code was to it, as DCI asks.

| predictor       | model                                                                | importance of a code     |
|-----------------|----------------------------------------------------------------------|--------------------------|
| `gbt`           | scikit-learn's gradient boosting with its defaults (locatello2019)   | drop of squared error    |
| `booster`       | the same algorithm with binned codes, all trees at once, CPU or CUDA | drop of squared error    |
| `random-forest` | scikit-learn's random forest with its defaults (eastwood2018)        | drop of impurity         |
| `lasso`         | linear regression with an L1 penalty, standardised (eastwood2018)    | absolute weight          |

Factors of classes get a classifier, real factors the regressor of the same family; `lasso` takes every factor as a
number. Work is shared among as many threads as torch uses.
"""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from unbraid.errors import UsageError, unknown
from unbraid.metrics.predictive.booster import FactorFit, Target, boost
from unbraid.progress import progress

Predictor = Literal["gbt", "booster", "random-forest", "lasso"]

VOTE_SUMS = 8
"""Sums into which the votes of a forest are divided, one thread at a time for each."""

FOLDS = 5
TOLERANCE = 1e-9


class Problem(NamedTuple):
    """Codes of training and of test [rows, codes], the training rows' targets, how often each row counts, and where.

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
    """Importances and predictions for every target.

    Where the training rows hold one class only, or where no code varies in them, there is nothing to learn: the most
    frequent class or the mean is predicted, and all importances are 0.
    """
    if predictor not in get_args(Predictor):
        raise unknown("predictor", predictor, get_args(Predictor))
    varied = bool((problem.train != problem.train[0]).any())
    learnt = [varied and bool((target.values != target.values[0]).any()) for target in problem.targets]
    made: dict[int, FactorFit] = {}
    if any(learnt):
        chosen = [k for k, yes in enumerate(learnt) if yes]
        told = problem._replace(targets=[problem.targets[k] for k in chosen])
        with warnings.catch_warnings():  # about few rows per class, and exact fits that no relative tolerance meets
            warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
            made = dict(zip(chosen, _PREDICTORS[predictor](told), strict=True))
    return [made[k] if k in made else _guess(problem, target) for k, target in enumerate(problem.targets)]


def rescale(codes: np.ndarray) -> np.ndarray:
    """Codes of about unit spread, by powers of two, which change no digit of them.

    scikit-learn's trees work in float32 and take differences under 1e-7 for none.
    """
    codes = np.ldexp(codes, -np.frexp(np.abs(codes).max(0))[1])
    far = np.abs(codes.mean(0)) > 64 * codes.std(0)
    codes = codes - np.where(far, codes.mean(0), 0.0)
    return np.ldexp(codes, -np.frexp(codes.std(0))[1])


def gbt(problem: Problem) -> list[FactorFit]:
    """scikit-learn's gradient boosting."""
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    def one(target: Target) -> FactorFit:
        make = GradientBoostingRegressor if target.size is None else GradientBoostingClassifier
        model = make(random_state=problem.seed).fit(problem.train, target.values, sample_weight=problem.weights)
        return FactorFit(model.feature_importances_, model.predict(problem.test), model.predict(problem.train))

    return _each(problem, one)


def random_forest(problem: Problem) -> list[FactorFit]:
    """scikit-learn's random forest; where there are more threads than targets, they share out its trees, too."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    share = math.ceil(torch.get_num_threads() / len(problem.targets))

    def one(target: Target) -> FactorFit:
        make = RandomForestRegressor if target.size is None else RandomForestClassifier
        forest = make(problem.trees, random_state=problem.seed, n_jobs=share).fit(problem.train, target.values)
        return FactorFit(forest.feature_importances_, predict_forest(forest, problem.test, share))

    return _each(problem, one)


def predict_forest(forest: Any, codes: np.ndarray, threads: int = 1) -> np.ndarray:
    """Return what scikit-learn's forest predicts, however many threads ask its trees.

    Votes are added up in the same order whatever happens, so that equal ones end the same. The trees themselves are
    asked, since the checks of the input that they make, one by one, take longer than their answers.
    """
    rows = np.ascontiguousarray(codes, dtype=np.float32)
    trees = [tree.tree_ for tree in forest.estimators_]
    parts = [trees[first::VOTE_SUMS] for first in range(min(VOTE_SUMS, len(trees)))]
    with ThreadPoolExecutor(threads) as pool:
        total = reduce(np.add, pool.map(lambda part: reduce(np.add, (tree.predict(rows) for tree in part)), parts))
    if not hasattr(forest, "classes_"):
        return total[:, 0] / len(trees)
    return forest.classes_[np.argmax(total, axis=1)]


def booster(problem: Problem) -> list[FactorFit]:
    """Gradient boosting of all trees at once."""
    if problem.weights is not None:
        raise UsageError("The booster counts every row once.")
    return boost(problem.train, problem.targets, problem.test, seed=problem.seed, device=problem.device)


def lasso(problem: Problem) -> list[FactorFit]:
    """L1-penalised regression on standardised codes and targets; the penalty is cross-validated if none is given."""
    mean, deviation = problem.train.mean(0), problem.train.std(0)
    deviation[deviation <= 0] = 1.0
    train, test = ((codes - mean) / deviation for codes in (problem.train, problem.test))

    def one(target: Target) -> FactorFit:
        wanted = target.values.astype(np.float64)
        centre, spread = wanted.mean(), wanted.std()
        model = _lasso(problem.alpha, len(train))
        model.fit(train, (wanted - centre) / spread)
        return FactorFit(np.abs(model.coef_), *(centre + spread * model.predict(codes) for codes in (test, train)))

    return _each(problem, one)


_PREDICTORS: dict[str, Callable[[Problem], list[FactorFit]]] = {
    "gbt": gbt,
    "booster": booster,
    "random-forest": random_forest,
    "lasso": lasso,
}


def _each(problem: Problem, one: Callable[[Target], FactorFit]) -> list[FactorFit]:
    """`one` of every target, the longest first so that no thread is left with it at the end."""
    workers = min(torch.get_num_threads(), os.cpu_count() or 1, len(problem.targets))
    order = sorted(range(len(problem.targets)), key=lambda k: -problem.targets[k].trees)
    with progress("predicting factors", len(order)) as bar, ThreadPoolExecutor(workers) as pool:
        jobs = {k: pool.submit(one, problem.targets[k]) for k in order}
        try:
            for job in as_completed(jobs.values()):
                job.result()
                bar.advance()
        finally:
            for job in jobs.values():
                job.cancel()
    return [jobs[k].result() for k in range(len(order))]


def _lasso(alpha: float | None, rows: int) -> Any:
    from sklearn.linear_model import Lasso, LassoCV

    if alpha is not None and alpha < 0:
        raise UsageError(f"alpha must not be negative, and it is {alpha}.")
    if alpha is None and rows < FOLDS:
        raise UsageError(f"Cross-validation needs at least {FOLDS} rows of training, not {rows}; set alpha.")
    exact = {"tol": TOLERANCE, "max_iter": 10_000}  # or the order of the codes would show in the third digit
    return LassoCV(cv=FOLDS, **exact) if alpha is None else Lasso(alpha=alpha, **exact)


def _guess(problem: Problem, target: Target) -> FactorFit:
    if target.size is None:
        answer = np.average(target.values, weights=problem.weights)
    else:
        answer = np.bincount(target.values, weights=problem.weights).argmax()
    return FactorFit(
        np.zeros(problem.train.shape[1]), *(np.full(len(x), answer) for x in (problem.test, problem.train))
    )
