r"""Gradient boosting of many trees at once, as scikit-learn's GradientBoosting does it (friedman2001), on CPU or CUDA.

Every stage fits one tree per class (one for two classes or for real values) to the residuals of its loss,

    r = y - p,    p = softmax(F) | sigmoid(F) | F itself,

by the largest decrease of their squared error, `n_l n_r / n (mean_l - mean_r)^2`, and adds to F the Newton step of each
leaf, `rate (K - 1) / K sum r / sum p (1 - p)`. A code's importance is the sum of its decreases over all trees.

The trees of a stage, for all classes of all targets, grow together. A histogram of residuals over the bins of all codes
is then one product with the one-hot matrix of the bins, which is sparse on the CPU and dense on CUDA. Residuals are
fixed-point numbers in the low digits of a float64 whose high digits count rows. So every sum is exact, one product
gives both, and neither the device nor the order of summation changes a split.

Codes with more values than `bins` are cut into bins with equally many rows. With a bin for each value the trees are
those of scikit-learn, except where two splits are equally good.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import SettingError, UsageError
from unbraid.progress import progress
from unbraid.recorded_step import RecordedStep
from unbraid.threads import one_thread

MAX_WORKERS = 4
"""Threads on the CPU; more of them wait for the interpreter."""

TREES_PER_JOB = 16
"""Trees that grow together on the CPU; their data fit into its cache."""

DEFAULT_BINS, MAX_UNBINNED_ROWS = 256, 2048
"""Bins per code, and the number of rows up to which each value is a bin."""

MAX_DENSE_BYTES = 2**33
"""Size of the one-hot matrix above which the CPU is used instead of CUDA."""


class Target(NamedTuple):
    """Class numbers 0 … size - 1 of every row, or real numbers if `size` is None; the penalty of a lasso, if known."""

    values: np.ndarray
    size: int | None
    alpha: float | None = None

    @property
    def trees(self) -> int:
        """Trees per stage."""
        return 1 if self.size is None or self.size == 2 else self.size


class FactorFit(NamedTuple):
    """Importances [codes], and predictions for the test rows and, if they are cheap, for the training rows.

    `alpha` is the penalty that a lasso chose.
    """

    importance: np.ndarray
    test: np.ndarray
    train: np.ndarray | None = None
    alpha: float | None = None


def boost(
    train: np.ndarray,
    targets: Sequence[Target],
    test: np.ndarray,
    *,
    stages: int = 100,
    depth: int = 3,
    rate: float = 0.1,
    bins: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[FactorFit]:
    """Fit all targets to the codes `train` [rows, codes] and predict them for the codes `test`.

    By default every value is a bin for up to 2,048 rows, and there are 256 bins for more: bins of a few rows change the
    importances by up to .03, bins of forty rows by less than .005.
    """
    bins = bins or (len(train) if len(train) <= MAX_UNBINNED_ROWS else DEFAULT_BINS)
    if not 2 <= bins <= 2**15 - 1:
        raise SettingError(f"bins must be between 2 and {2**15 - 1}, not {bins}.")
    if len(train) >= 2**20:
        raise UsageError(f"The booster takes up to {2**20 - 1} rows, not {len(train)}.")
    if any(len(target.values) != len(train) for target in targets):
        raise UsageError(f"Every target must have a value for each of the {len(train)} rows.")
    device = torch.device(device)
    if device.type != "cuda" or train.size * bins * 8 > MAX_DENSE_BYTES:
        device = torch.device("cpu")
    workers = min(MAX_WORKERS, torch.get_num_threads()) if device.type == "cpu" else 1
    with torch.no_grad(), progress("boosting", stages) as bar, one_thread(), ThreadPoolExecutor(workers) as pool:
        ensemble = _Ensemble(_Binned(train, bins, device), torch.as_tensor(test, device=device).double(), targets)
        lots = _draw_lots(seed, stages, (train.shape[1], sum(target.trees for target in targets), 2**depth))
        add_stage = _plan_stages(ensemble, depth, rate, lots, pool)
        for _ in range(stages):
            add_stage()
            bar.advance()
    return ensemble.fits()


def _draw_lots(seed: int, stages: int, shape: tuple[int, int, int]) -> Iterator[Tensor]:
    """Draw the lots of each stage, by which a node chooses among codes that split it equally well."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(stages):
        yield torch.rand(shape, generator=generator)


def _plan_stages(
    ensemble: "_Ensemble", depth: int, rate: float, lots: Iterator[Tensor], pool: Executor
) -> Callable[[], None]:
    """Return the function that adds the next stage.

    On CUDA a stage is hundreds of small kernels and the same for all stages, so it is recorded once and then replayed.
    """
    device = ensemble.binned.device
    if device.type != "cuda":
        return lambda: ensemble.add_stage(depth, rate, next(lots), pool)
    stacked, clock = torch.stack(list(lots)).to(device), torch.zeros(1, dtype=torch.int64, device=device)

    def add_stage(_: object) -> None:
        ensemble.add_stage(depth, rate, stacked.index_select(0, clock)[0])
        clock.add_(1)

    return RecordedStep(add_stage, device)


class _Split(NamedTuple):
    """The best split of every node [trees, nodes]: rows above a bin, or a value, of a code go right."""

    gain: Tensor
    code: Tensor
    bin: Tensor
    value: Tensor


class _Binned:
    """Training codes as bin numbers [codes, rows], the extremes of each bin, and the one-hot matrix."""

    def __init__(self, codes: np.ndarray, bins: int, device: torch.device) -> None:
        import scipy.sparse

        columns = [_cut_into_bins(column, bins) for column in codes.T]
        self.rows, self.codes = codes.shape
        self.bins = max(len(low) for _, low, _ in columns)
        self.device = device
        self.index = torch.from_numpy(np.stack([index for index, _, _ in columns])).to(device)
        padded = ([np.pad(c[end], (0, self.bins - len(c[end])), "edge") for c in columns] for end in (1, 2))
        self.low, self.high = (torch.from_numpy(np.stack(ends)).to(device) for ends in padded)
        cells = self.index.T.long() + self.bins * torch.arange(self.codes, device=device)
        shape = (self.rows, self.codes * self.bins)
        if device.type == "cuda":
            self.dense = torch.zeros(shape, dtype=torch.float64, device=device).scatter_(1, cells, 1.0).T.contiguous()
        else:
            ends, ones = np.arange(self.rows + 1) * self.codes, np.ones(cells.numel())
            self.sparse = scipy.sparse.csr_matrix((ones, cells.flatten().numpy(), ends), shape).T.tocsr()

    def histogram(self, values: Tensor) -> Tensor:
        """Return the sums [codes, bins, …] of values […, rows] over the rows in each bin of each code."""
        flat = values.reshape(-1, self.rows).T
        if self.device.type == "cuda":
            sums = self.dense @ flat
        else:
            sums = torch.from_numpy(self.sparse @ np.ascontiguousarray(flat.numpy()))
        return sums.reshape(self.codes, self.bins, *values.shape[:-1])


class _FixedPoint:
    """Residuals in fixed point below the count of rows, in one float64 whose sums over all rows are exact."""

    def __init__(self, rows: int) -> None:
        digits = math.ceil(math.log2(rows + 1))
        self.one = 2.0 ** (52 - 2 * digits)
        self.row = 2.0 ** (53 - digits)

    def pack(self, residuals: Tensor) -> Tensor:
        return (residuals * self.one).round_().add_(self.row)

    def unpack(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of rows and the sum of their residuals in units of `1 / one`."""
        count = (sums * (1 / self.row)).round_()
        return count, torch.sub(sums, count, alpha=self.row)


class _Ensemble:
    """Scores F of all trees on the training and test rows, and the importances so far."""

    def __init__(self, binned: _Binned, test: Tensor, targets: Sequence[Target]) -> None:
        self.binned, self.test, self.targets = binned, test.T.contiguous(), targets
        self.packing = _FixedPoint(binned.rows)
        device = binned.device
        self.goal = torch.cat([_find_goal(target) for target in targets]).to(device)  # [trees, rows]
        start = torch.cat([_find_start(target) for target in targets]).to(device)
        self.scores = start[:, None].repeat(1, binned.rows)
        self.test_scores = start[:, None].repeat(1, len(test))
        shares = [1.0 if t.trees == 1 else (t.trees - 1) / t.trees for t in targets for _ in range(t.trees)]
        self.shares = torch.tensor(shares, dtype=torch.float64, device=device)
        self.real = torch.tensor([t.size is None for t in targets for _ in range(t.trees)], device=device)
        self.importance = torch.zeros(len(shares), binned.codes, dtype=torch.float64, device=device)

    def add_stage(self, depth: int, rate: float, lots: Tensor, pool: Executor | None = None) -> None:
        """Add a tree of each class; lots are [codes, trees, nodes]. A `pool` grows them in parts."""
        expected, trees = self._predict(), len(self.shares)
        lots = lots.to(expected)
        if pool is None:
            self._fit_part(slice(0, trees), expected, lots, depth, rate)
            return
        parts = [slice(first, min(first + TREES_PER_JOB, trees)) for first in range(0, trees, TREES_PER_JOB)]
        for _ in pool.map(lambda part: self._fit_part(part, expected[part], lots[:, part], depth, rate), parts):
            pass

    def _fit_part(self, part: slice, expected: Tensor, lots: Tensor, depth: int, rate: float) -> None:
        with torch.no_grad():
            residuals = self.goal[part] - expected
            splits, leaves = self._grow(residuals, depth, self.importance[part], lots)
            curvatures = (expected * (1 - expected)).masked_fill_(self.real[part, None], 1.0)
            steps = _sum_newton_steps(residuals, curvatures, leaves, 2**depth) * (rate * self.shares[part, None])
            self.scores[part] += _look_up(steps, leaves)
            self.test_scores[part] += _look_up(steps, _find_leaves(self.test, splits))

    def fits(self) -> list[FactorFit]:
        sizes = [target.trees for target in self.targets]
        parts = zip(*(x.split(sizes) for x in (self.importance, self.scores, self.test_scores)), strict=True)
        results = []
        for target, (importance, train, test) in zip(self.targets, parts, strict=True):
            sums = importance.sum(0)
            share = sums / sums.sum() if sums.sum() > 0 else sums
            results.append(FactorFit(share.cpu().numpy(), _decide(target, test), _decide(target, train)))
        return results

    def _predict(self) -> Tensor:
        """Return the probabilities, or the real values, that F gives every row [trees, rows]."""
        expected = torch.empty_like(self.scores)
        sizes = [target.trees for target in self.targets]
        for target, into, scores in zip(self.targets, expected.split(sizes), self.scores.split(sizes), strict=True):
            if target.size is None:
                into.copy_(scores)
            else:
                into.copy_(scores.sigmoid() if target.trees == 1 else scores.softmax(0))
        return expected

    def _grow(self, residuals: Tensor, depth: int, importance: Tensor, lots: Tensor) -> tuple[list[_Split], Tensor]:
        """Grow trees for residuals [trees, rows]; return their splits by level, and each row's leaf."""
        scale = torch.exp2(torch.frexp(residuals.abs().amax(1, keepdim=True)).exponent.double())
        packed = self.packing.pack(residuals / scale)
        nodes = torch.zeros(packed.shape, dtype=torch.uint8, device=packed.device)
        histogram = self.binned.histogram(packed[:, None])  # [codes, bins, trees, nodes]
        splits: list[_Split] = []
        for level in range(depth):
            split = self._find_splits(histogram, lots[..., 2**level : 2 ** (level + 1)])
            splits.append(split)
            for code, gain in zip(split.code.T, (split.gain * scale.square()).T, strict=True):
                importance.scatter_add_(1, code[:, None], gain[:, None])  # each tree once: CUDA adds in any order
            nodes = _descend(nodes, self.binned.index, split.code, split.bin)
            if level + 1 < depth:
                left = torch.stack([packed * _is_equal(nodes, 2 * k).double() for k in range(2**level)], dim=1)
                sums = self.binned.histogram(left)
                histogram = torch.stack([sums, histogram - sums], dim=-1).flatten(-2)
        return splits, nodes

    def _find_splits(self, histogram: Tensor, lots: Tensor) -> _Split:
        """Return the best split of every node, drawn by lot among codes that split equally well.

        A node that cannot be split sends its rows left.
        """
        count, total = self.packing.unpack(histogram.cumsum(1))
        rows, whole = count[0, -1].clone(), total[0, -1].clone()  # [trees, nodes]
        contrast = total.mul_(rows).addcmul_(count, whole, value=-1)
        gain = contrast.square_().div_((rows - count).mul_(count).clamp_(min=1))
        best, at = gain.max(1)  # [codes, trees, nodes]
        code = torch.where(best == best.amax(0), lots, -1.0).argmax(0)
        best, at = best.gather(0, code[None])[0], at.gather(0, code[None])[0]
        trees, nodes = (torch.arange(size, device=code.device) for size in code.shape)
        below = count.movedim(1, -1)[code, trees[:, None], nodes]  # [trees, nodes, bins]
        after = (below <= below.gather(-1, at[..., None])).sum(-1).clamp(max=self.binned.bins - 1)
        value = (self.binned.high[code, at] + self.binned.low[code, after]) / 2
        whole_node = best <= 0
        best = best / (rows.clamp(min=1) * self.packing.one**2)
        at, value = at.masked_fill(whole_node, self.binned.bins), value.masked_fill(whole_node, math.inf)
        return _Split(best, code, at.to(self.binned.index.dtype), value)


def _cut_into_bins(column: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's bin, and the smallest and largest value of every bin."""
    values, index, counts = np.unique(column.astype(np.float64), return_inverse=True, return_counts=True)
    of_value = np.arange(len(values))
    if len(values) > bins:
        middle = np.cumsum(counts) - counts / 2
        of_value = np.unique((middle * bins / len(column)).astype(int), return_inverse=True)[1]
    firsts = np.searchsorted(of_value, np.arange(of_value[-1] + 1))
    lasts = np.append(firsts[1:], len(values)) - 1
    return of_value[index.reshape(-1)].astype(np.int16), values[firsts], values[lasts]


def _find_goal(target: Target) -> Tensor:
    """Return the ideal probabilities [trees, rows], or the real values."""
    values = torch.as_tensor(target.values)
    if target.trees == 1:
        return values.double()[None]
    return (values == torch.arange(target.trees)[:, None]).double()


def _find_start(target: Target) -> Tensor:
    """Return F before the first tree: the mean, or the log odds of the classes' shares."""
    if target.size is None:
        return torch.tensor([float(np.mean(target.values))], dtype=torch.float64)
    shares = torch.bincount(torch.as_tensor(target.values).long(), minlength=target.size).double() / len(target.values)
    logs = shares.clamp(1e-7, 1 - 1e-7).log()
    return (logs[1:] - logs[:1]) if target.trees == 1 else logs


def _decide(target: Target, scores: Tensor) -> np.ndarray:
    if target.size is None:
        return scores[0].cpu().numpy()
    return (scores.argmax(0) if target.trees > 1 else (scores[0] > 0).long()).cpu().numpy()


def _descend(nodes: Tensor, values: Tensor, code: Tensor, cut: Tensor) -> Tensor:
    """Return the node of each row [trees, rows] one level down; node k has the children 2k and 2k + 1."""
    right = torch.zeros(nodes.shape, dtype=torch.bool, device=nodes.device)
    for node in range(code.shape[1]):
        above = _is_above(values.index_select(0, code[:, node]), cut[:, node, None])
        right |= above & _is_equal(nodes, node)
    return nodes.mul(2).add_(right)


def _find_leaves(values: Tensor, splits: list[_Split]) -> Tensor:
    """Return the leaf of each row of codes [codes, rows] in each tree."""
    nodes = torch.zeros(len(splits[0].code), values.shape[1], dtype=torch.uint8, device=values.device)
    for split in splits:
        nodes = _descend(nodes, values, split.code, split.value)
    return nodes


def _sum_newton_steps(residuals: Tensor, curvatures: Tensor, leaves: Tensor, count: int) -> Tensor:
    """Return sum r / sum p (1 - p) of every leaf [trees, leaves]; fixed-point sums do not depend on their order."""
    unit = 2.0 ** (52 - math.ceil(math.log2(residuals.shape[1] + 1)))
    cells = _index_leaves(leaves, count)
    sums = []
    for values in (residuals, curvatures):
        scale = values.abs().amax(1, keepdim=True).clamp_(min=1e-300)
        fixed = (values * (unit / scale)).round_().flatten()
        sums.append(fixed.new_zeros(count * len(leaves)).index_add_(0, cells, fixed).view(-1, count) * scale)
    return torch.where(sums[1] > 0, sums[0] / sums[1], 0.0)


def _look_up(steps: Tensor, leaves: Tensor) -> Tensor:
    """Return the step of every row's leaf [trees, rows]."""
    return steps.flatten().index_select(0, _index_leaves(leaves, steps.shape[1])).view(leaves.shape)


def _index_leaves(leaves: Tensor, count: int) -> Tensor:
    """Return the position of each row's leaf in a flattened [trees, leaves]."""
    first = count * torch.arange(len(leaves), dtype=torch.int32, device=leaves.device)
    return (leaves.int() + first[:, None]).flatten()


def _is_above(values: Tensor, cut: Tensor) -> Tensor:
    """Return values > cut; numpy compares many times as fast as torch on the CPU."""
    return values > cut if values.is_cuda else torch.from_numpy(values.numpy() > cut.numpy())


def _is_equal(values: Tensor, number: int) -> Tensor:
    return values == number if values.is_cuda else torch.from_numpy(values.numpy() == number)
