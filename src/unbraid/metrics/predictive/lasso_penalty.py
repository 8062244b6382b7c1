r"""The penalty of an L1-penalised regression by cross-validation, as scikit-learn's `LassoCV` chooses it, but faster.

The weights w(alpha) that minimise  1/2n |y - x w|^2 + alpha |w|_1  are linear in alpha between few knots, which least
angle regression finds (efron2004). So one path per fold has the exact weights for all 100 penalties.

Reference: Efron, Hastie, Johnstone and Tibshirani (2004), Least angle regression. Annals of Statistics 32.
"""

import warnings

import numpy as np

FOLDS = 5
PENALTIES = 100
SMALLEST = 1e-3
"""The smallest penalty that is tried, as a share of the least one at which all weights are 0."""

MAX_VIOLATION = 1e-6
"""Relative error of the conditions of a minimum above which a path is not trusted, as with codes that are copies."""


def choose_penalty(codes: np.ndarray, target: np.ndarray) -> float | None:
    """Return the penalty of least error over folds of codes [rows, latents]; None if a path is inexact."""
    centred = codes - codes.mean(0)
    greatest = np.abs(centred.T @ (target - target.mean())).max() / len(codes)
    if greatest <= np.finfo(np.float64).resolution:
        return None
    penalties = np.geomspace(greatest, greatest * SMALLEST, PENALTIES)
    errors = []
    for test in np.array_split(np.arange(len(codes)), FOLDS):
        train = np.delete(np.arange(len(codes)), test)
        mean, level = codes[train].mean(0), target[train].mean()
        weights = _trace_path(codes[train] - mean, target[train] - level, penalties)
        if weights is None:
            return None
        missed = (target[test] - level)[:, None] - (codes[test] - mean) @ weights
        errors.append(np.square(missed).mean(0))
    return float(penalties[np.mean(errors, axis=0).argmin()])


def _trace_path(codes: np.ndarray, target: np.ndarray, penalties: np.ndarray) -> np.ndarray | None:
    """Return the weights [latents, penalties] of centred codes and target; None unless they are minima."""
    from sklearn.linear_model import lars_path_gram

    products, gram = codes.T @ target, codes.T @ codes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about copies of codes; the conditions below decide
        path = lars_path_gram(products, gram, n_samples=len(codes), method="lasso")
    knots, of_knots = path[0][::-1], path[2][:, ::-1]  # from small penalties to great ones
    weights = np.stack([np.interp(penalties, knots, row) for row in of_knots])
    slope = (products[:, None] - gram @ weights) / (len(codes) * penalties)  # the sign of a weight, or from -1 to 1
    violation = np.where(weights == 0, np.abs(slope) - 1, np.abs(slope - np.sign(weights)))
    return weights if violation.max() < MAX_VIOLATION else None
