"""Are the tails of features so heavy that a few rows far from all others decide a score and its spread?"""

import math

import numpy as np
import torch
from torch import Tensor

MAX_SHARE_OF_A_ROW = 1 / 8
"""Part of a sum's variance that one row may hold in any case. As rows are added, the share of the largest falls to 0 if
the variance is finite (lindeberg1922), and stays at about a half if it is not."""

NORMAL_SETS = 50
"""Sets of Normal features whose largest shares may exceed it, too, because there are few rows or few features."""

TAIL = 1 / 20
"""Part of the rows, those farthest from the mean, that tells how fast a tail falls."""

MIN_ROWS_IN_TAIL = 20
"""Rows without which a tail index is mostly chance: its relative standard error is one over their root."""


def has_heavy_tails(x: Tensor, degree: int, rng: np.random.Generator) -> bool:
    """Return whether one row holds more of the variance of a sum than it would in Normal features like these.

    The sum is that of the lengths of centred rows [rows, features] to the power of `degree`.
    """
    share = _find_largest_share(_find_lengths(x) ** degree)
    if share <= MAX_SHARE_OF_A_ROW:
        return False
    variances = torch.linalg.svdvals(factor_covariance(x)).square().cpu().numpy()
    shape = len(x), len(variances)
    return all(
        _find_largest_share((rng.chisquare(1, shape) @ variances) ** (degree / 2)) < share for _ in range(NORMAL_SETS)
    )


def find_tail_index(x: Tensor) -> float:
    """Return the power with which the share of rows beyond a distance falls far from the mean (hill1975).

    Moments of that order and above are infinite. It is infinity if there are too few rows to tell.
    """
    lengths = np.sort(_find_lengths(x))[::-1]
    count = int(TAIL * len(lengths))
    if count < MIN_ROWS_IN_TAIL or lengths[count] == 0:
        return math.inf
    mean = float(np.log(lengths[:count] / lengths[count]).mean())
    return 1 / mean if mean > 0 else math.inf


def factor_covariance(x: Tensor) -> Tensor:
    """Return F [min(rows, features), features] with F^T F the covariance."""
    centred = (x - x.mean(0)) / math.sqrt(len(x) - 1)
    return torch.linalg.qr(centred, mode="r").R if len(x) > x.shape[1] else centred


def _find_lengths(x: Tensor) -> np.ndarray:
    return (x - x.mean(0)).square().sum(1).sqrt().cpu().numpy()


def _find_largest_share(numbers: np.ndarray) -> float:
    """Return the largest share of a row in the variance of numbers [rows]."""
    deviations = np.square(numbers - numbers.mean())
    return float(deviations.max() / max(deviations.sum(), 1e-300))
