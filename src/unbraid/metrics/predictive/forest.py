r"""Random forests on a GPU (breiman2001), as scikit-learn grows them by default, with other random numbers.

Every tree draws as many rows as there are, with replacement, and splits nodes until they are pure or their codes are
all the same. A node draws codes at random, `int(sqrt(codes))` of them for classes and all for real values, and takes
the split with the largest drop of impurity (Gini, or squared error). A code's importance is its sum of drops in each
tree as a share of all, averaged over trees. A forest predicts the class with the largest mean share in the leaves, or
the mean of their means.

All trees of all targets grow at once, one per program of a Triton kernel (`forest_kernel`). Nothing depends on the
order in which they run, so a seed has one result.
"""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.kernels import allows_kernels, launch
from unbraid.metrics.predictive.booster import FactorFit, Target

TRITON = find_spec("triton") is not None

MAX_NUMBERS = 2**29
"""Rows x codes up to which positions in the lists of a tree are 32-bit numbers."""

MAX_CODES = 512
"""Codes up to which the kernel compiles within seconds."""

MIN_DIFFERENT_ROWS = 1 / 8
"""Share of different rows of codes; with fewer, leaves of many equal rows with different values take long to ask."""

MAX_PREDICTIONS = 2**28
"""Numbers of 8 bytes for the predictions of all trees or for all classes."""

MAX_SCRATCH_BYTES = 2**31
"""Memory of the trees that grow at once; others wait for them."""

BLOCK, TILE = 32, 16
"""Rows that a program reads at once, and codes for which it divides a node's rows at once."""

WARPS = 1
"""Warps of a program. Most nodes have a few rows, so more warps would mostly wait for each other."""

ROWS_TO_PREDICT = 128
"""Test rows of a program that predicts."""


def can_grow(
    train: np.ndarray, targets: Sequence[Target], test: np.ndarray, *, trees: int, device: torch.device | str
) -> bool:
    """Return whether `grow_forest` can fit these targets to these codes on this device."""
    on_gpu = torch.device(device).type == "cuda" and TRITON and allows_kernels()
    if not on_gpu or not 0 < train.size <= MAX_NUMBERS or not 0 < test.size <= MAX_NUMBERS:
        return False
    outputs = len(targets) * max((trees if target.size is None else target.size for target in targets), default=0)
    return (
        train.shape[1] <= MAX_CODES
        and outputs * len(test) <= MAX_PREDICTIONS
        and all(bool(np.abs(codes).max() <= np.finfo(np.float32).max) for codes in (train, test))
        and _count_different(train) >= MIN_DIFFERENT_ROWS * len(train)
    )


def _count_different(codes: np.ndarray) -> int:
    """Return the number of different rows, by a random mixture of their codes."""
    return len(np.unique(codes @ np.random.default_rng(0).standard_normal(codes.shape[1])))


class _Settings(NamedTuple):
    """Settings of a forest; scikit-learn: n_estimators, random_state, bootstrap, max_features and min_samples_split."""

    trees: int
    seed: int
    bootstrap: bool
    max_features: int | None
    min_rows: int


def grow_forest(
    train: np.ndarray,
    targets: Sequence[Target],
    test: np.ndarray,
    *,
    trees: int = 100,
    seed: int = 0,
    device: torch.device | str = "cuda",
    bootstrap: bool = True,
    max_features: int | None = None,
    min_rows: int = 2,
) -> list[FactorFit]:
    """Fit all targets to the codes `train` [rows, codes] and predict them for the codes `test`.

    Without `bootstrap`, every tree learns from all rows. `max_features` is the number of codes that a node draws (None:
    scikit-learn's default), `min_rows` the fewest rows that it splits.
    """
    if any(len(target.values) != len(train) for target in targets):
        raise UsageError(f"Every target must have a value for each of the {len(train)} rows.")
    settings = _Settings(trees, seed, bootstrap, max_features, min_rows)
    forest = _Forest(train, test, settings, torch.device(device))
    fits: dict[int, FactorFit] = {}
    for real in (False, True):
        places = [k for k, target in enumerate(targets) if (target.size is None) == real]
        if places:
            fits |= zip(places, forest.fit([targets[k] for k in places], real), strict=True)
    return [fits[k] for k in range(len(targets))]


class _Grown(NamedTuple):
    """Results of the kernels `grow` and `predict` for targets of one kind."""

    importances: Tensor
    votes: Tensor
    means: Tensor


class _Forest:
    """Codes and drawn rows, which all targets share."""

    def __init__(self, train: np.ndarray, test: np.ndarray, settings: _Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.codes, self.test = (
            torch.as_tensor(codes, dtype=torch.float32).to(device).T.contiguous() for codes in (train, test)
        )  # [codes, rows]
        self.features, self.rows = self.codes.shape
        self.asked = self.test.shape[1]
        self.order = self.codes.argsort(dim=1, stable=True).to(torch.int32)
        rng = np.random.default_rng(settings.seed)
        self.seeds = torch.from_numpy(rng.integers(2**62, size=settings.trees)).to(device)
        self.weights = torch.from_numpy(np.stack([self._draw(rng) for _ in range(settings.trees)])).to(device)

    def _draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return how often a tree learns from each row."""
        if not self.settings.bootstrap:
            return np.ones(self.rows, np.int32)
        return np.bincount(rng.integers(self.rows, size=self.rows), minlength=self.rows).astype(np.int32)

    def fit(self, targets: Sequence[Target], real: bool) -> list[FactorFit]:
        """Return importances and predictions of targets that are all classes or all real."""
        values = np.stack([np.asarray(target.values, np.float64 if real else np.int32) for target in targets])
        centres = values.mean(1, keepdims=True) if real else np.zeros((len(targets), 1), np.int32)
        grown = self._grow(torch.from_numpy(values - centres).to(self.device), 1 if real else int(values.max()) + 1)
        importances = grown.importances.cpu().numpy().reshape(len(targets), self.settings.trees, -1)
        if real:
            predicted = grown.means.view(len(targets), -1, self.asked).mean(1).cpu().numpy() + centres
        else:  # shares in mixed leaves are rounded, and the rounding must not decide ties
            predicted = (((grown.votes >> 19) + 1) >> 1).argmax(-1).cpu().numpy()
        return [FactorFit(_average(drops), on_test) for drops, on_test in zip(importances, predicted, strict=True)]

    def _grow(self, values: Tensor, classes: int) -> _Grown:
        """Grow the trees of all targets, as many at once as fit into memory, and let them predict."""
        from unbraid.metrics.predictive.forest_kernel import grow
        from unbraid.metrics.predictive.forest_vote_kernel import predict

        real, trees = values.is_floating_point(), self.settings.trees
        drawn = self.settings.max_features or (self.features if real else max(1, math.isqrt(self.features)))
        jobs = len(values) * trees
        grown = self._allocate_outputs(len(values), classes, real)
        part = min(jobs, max(1, MAX_SCRATCH_BYTES // (8 * self.rows * (self.features + 6) + 8 * classes)))
        scratch = self._allocate_scratch(part, classes)
        for first in range(0, jobs, part):
            lists, counts, *nodes = (tensor[: jobs - first] for tensor in scratch)
            sizes = self.rows, self.features, trees, first, classes
            launch(
                grow, (len(lists),),
                self.codes, values, self.order, self.weights, self.seeds, lists, counts, *nodes,
                grown.importances, *sizes, drawn, self.settings.min_rows,
                REAL=real, WIDTH=1 << (self.features - 1).bit_length(), TILE=TILE, BLOCK=BLOCK,
                num_warps=WARPS, num_stages=1, enable_fp_fusion=False,
            )  # fmt: skip
            launch(
                predict, (len(lists), -(-self.asked // ROWS_TO_PREDICT)),
                self.test, values, self.weights, lists, *nodes, grown.votes, grown.means, *sizes, self.asked,
                REAL=real, BLOCK=ROWS_TO_PREDICT, num_stages=1,
            )  # fmt: skip
        return grown

    def _allocate_outputs(self, targets: int, classes: int, real: bool) -> _Grown:
        jobs = targets * self.settings.trees
        return _Grown(
            torch.empty(jobs, self.features + 1, dtype=torch.float64, device=self.device),
            torch.zeros(0 if real else targets, self.asked, classes, dtype=torch.int64, device=self.device),
            torch.empty(jobs if real else 0, self.asked, dtype=torch.float64, device=self.device),
        )

    def _allocate_scratch(self, trees: int, classes: int) -> list[Tensor]:
        """Return lists, counts and nodes of trees, in the order of the kernels' arguments."""
        firsts = sizes = splits = children = (2 * self.rows,)
        shapes = (self.features, 2, self.rows), (2, classes), firsts, sizes, splits, children
        *whole, last = (torch.empty(trees, *shape, dtype=torch.int32, device=self.device) for shape in shapes)
        return [*whole, torch.empty(trees, 2 * self.rows, dtype=torch.float64, device=self.device), last]


def _average(importances: np.ndarray) -> np.ndarray:
    """Return the mean share of each code over trees that split anything; the last column counts nodes."""
    drops = importances[importances[:, -1] > 1, :-1]
    sums = drops.sum(1, keepdims=True)
    shares = (drops / np.where(sums > 0, sums, 1.0)).sum(0)
    return shares / shares.sum() if shares.sum() > 0 else np.zeros(len(shares))
