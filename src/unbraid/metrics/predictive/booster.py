r"""Gradient boosting of many trees at once, as scikit-learn's GradientBoosting does it (friedman2001), on CPU or CUDA.

Every stage fits one tree per class (one for two classes or for real values) to the residuals of its loss,

    r = y - p,    p = softmax(F) | sigmoid(F) | F itself,

by the largest decrease of their squared error, `n_l n_r / n (mean_l - mean_r)^2`, and adds to F the Newton step of each
leaf, `rate (K - 1) / K sum r / sum p (1 - p)`. A code's importance is the sum of its decreases over all trees.

The trees of a stage, of all classes of all targets, grow together. A histogram of residuals over the bins of all codes
is then one product with the one-hot matrix of the bins: a sparse one on the CPU, a dense one on CUDA. Residuals enter
it in fixed point, with the count of rows above them in the same float64, so that every sum is exact: one product gives
both, and neither device nor order of summation changes a split.

Codes of more different values than `bins` are cut into bins of equally many rows; with as many bins as values the trees
are scikit-learn's, except where two splits are equally good.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import SettingError, UsageError
from unbraid.progress import progress
from unbraid.threads import one_thread

WORKERS = 4
"""Threads that grow pieces on the CPU, at most: more of them wait for the interpreter."""

PIECE = 16
"""Trees that grow together on the CPU: what belongs to them fits into its cache."""

BINS, EVERY_VALUE = 256, 2048
"""Bins per code, and the number of rows up to which each value is a bin of its own."""

DENSE = 2**33
"""Bytes of the one-hot matrix above which a CUDA device is left alone."""


class Target(NamedTuple):
    """What is to be predicted: class numbers 0 … size - 1 for every row, or real numbers where `size` is None."""

    values: np.ndarray
    size: int | None

    @property
    def trees(self) -> int:
        """Trees per stage."""
        return 1 if self.size is None or self.size == 2 else self.size


class FactorFit(NamedTuple):
    """Importance [codes], and what is predicted for the rows of test and, where that is cheap, of training."""

    importance: np.ndarray
    test: np.ndarray
    train: np.ndarray | None = None


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

    Without a number of `bins` every value has its own up to 2,048 rows, and 256 are made of more: bins of a few rows
    each change the importances by up to .03, while bins of forty rows change them by less than .005.
    """
    bins = bins or (len(train) if len(train) <= EVERY_VALUE else BINS)
    if not 2 <= bins <= 2**15 - 1:
        raise SettingError(f"bins must be between 2 and {2**15 - 1}, not {bins}.")
    if len(train) >= 2**20:
        raise UsageError(f"The booster takes up to {2**20 - 1} rows, not {len(train)}.")
    if any(len(target.values) != len(train) for target in targets):
        raise UsageError(f"Every target must have a value for each of the {len(train)} rows.")
    where = torch.device(device)
    if where.type != "cuda" or train.size * bins * 8 > DENSE:
        where = torch.device("cpu")
    workers = min(WORKERS, torch.get_num_threads()) if where.type == "cpu" else 1
    with torch.no_grad(), progress("boosting", stages) as bar, one_thread(), ThreadPoolExecutor(workers) as pool:
        ensemble = _Ensemble(_Binned(train, bins, where), torch.as_tensor(test, device=where).double(), targets, seed)
        for _ in range(stages):
            ensemble.advance(depth, rate, pool)
            bar.advance()
    return ensemble.fits()


class _Split(NamedTuple):
    """The best split of every node [trees, nodes]: rows above a bin of a code, or above a value of it, go right."""

    gain: Tensor
    code: Tensor
    bin: Tensor
    value: Tensor


class _Binned:
    """Training codes as bin numbers [codes, rows], the smallest and largest value of each bin, the one-hot matrix."""

    def __init__(self, codes: np.ndarray, bins: int, device: torch.device) -> None:
        import scipy.sparse

        columns = [_bins(column, bins) for column in codes.T]
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
        """Sums [codes, bins, …] of values […, rows] over the rows in each bin of each code."""
        flat = values.reshape(-1, self.rows).T
        if self.device.type == "cuda":
            sums = self.dense @ flat
        else:
            sums = torch.from_numpy(self.sparse @ np.ascontiguousarray(flat.numpy()))
        return sums.reshape(self.codes, self.bins, *values.shape[:-1])


class _Packing:
    """Residuals in fixed point below the number of rows, in one float64 whose sums over all rows are exact."""

    def __init__(self, rows: int) -> None:
        digits = math.ceil(math.log2(rows + 1))
        self.one = 2.0 ** (52 - 2 * digits)
        self.row = 2.0 ** (53 - digits)

    def pack(self, residuals: Tensor) -> Tensor:
        """Residuals of absolute value up to 1."""
        return (residuals * self.one).round_().add_(self.row)

    def unpack(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Number of rows, and the sum of their residuals in units of `1 / one`."""
        count = (sums * (1 / self.row)).round_()
        return count, torch.sub(sums, count, alpha=self.row)


class _Ensemble:
    """Scores F of all trees' outputs on the rows of training and of test, and the importances so far."""

    def __init__(self, binned: _Binned, test: Tensor, targets: Sequence[Target], seed: int) -> None:
        self.binned, self.test, self.targets = binned, test.T.contiguous(), targets
        self.packing = _Packing(binned.rows)
        self.lots = torch.Generator().manual_seed(seed)
        device = binned.device
        self.wanted = torch.cat([_wanted(target) for target in targets]).to(device)  # [trees, rows]
        start = torch.cat([_start(target) for target in targets]).to(device)
        self.scores = start[:, None].repeat(1, binned.rows)
        self.test_scores = start[:, None].repeat(1, len(test))
        shares = [1.0 if t.trees == 1 else (t.trees - 1) / t.trees for t in targets for _ in range(t.trees)]
        self.shares = torch.tensor(shares, dtype=torch.float64, device=device)
        self.real = torch.tensor([t.size is None for t in targets for _ in range(t.trees)], device=device)
        self.importance = torch.zeros(len(shares), binned.codes, dtype=torch.float64, device=device)

    def advance(self, depth: int, rate: float, pool: Executor) -> None:
        """One more stage, in pieces that do not depend on each other."""
        expected, trees = self._expected(), len(self.shares)
        lots = torch.rand(self.binned.codes, trees, 2**depth, generator=self.lots).to(expected)
        piece = trees if self.binned.device.type == "cuda" else PIECE
        parts = [slice(first, min(first + piece, trees)) for first in range(0, trees, piece)]
        for _ in pool.map(lambda part: self._fit(part, expected[part], lots[:, part], depth, rate), parts):
            pass

    def _fit(self, part: slice, expected: Tensor, lots: Tensor, depth: int, rate: float) -> None:
        with torch.no_grad():
            residuals = self.wanted[part] - expected
            splits, leaves = self._grow(residuals, depth, self.importance[part], lots)
            curvatures = (expected * (1 - expected)).masked_fill_(self.real[part, None], 1.0)
            steps = _newton(residuals, curvatures, leaves, 2**depth) * (rate * self.shares[part, None])
            self.scores[part] += _looked_up(steps, leaves)
            self.test_scores[part] += _looked_up(steps, _route(self.test, splits))

    def fits(self) -> list[FactorFit]:
        """Importances and predictions of every target."""
        sizes = [target.trees for target in self.targets]
        parts = zip(*(x.split(sizes) for x in (self.importance, self.scores, self.test_scores)), strict=True)
        made = []
        for target, (importance, train, test) in zip(self.targets, parts, strict=True):
            sums = importance.sum(0)
            share = sums / sums.sum() if sums.sum() > 0 else sums
            made.append(FactorFit(share.cpu().numpy(), _predicted(target, test), _predicted(target, train)))
        return made

    def _expected(self) -> Tensor:
        """What F says of every row [trees, rows]: probabilities, or the real value itself."""
        expected = torch.empty_like(self.scores)
        sizes = [target.trees for target in self.targets]
        for target, into, scores in zip(self.targets, expected.split(sizes), self.scores.split(sizes), strict=True):
            if target.size is None:
                into.copy_(scores)
            else:
                into.copy_(scores.sigmoid() if target.trees == 1 else scores.softmax(0))
        return expected

    def _grow(self, residuals: Tensor, depth: int, importance: Tensor, lots: Tensor) -> tuple[list[_Split], Tensor]:
        """Trees of `depth` levels for residuals [trees, rows]: their splits by level, and each row's leaf."""
        scale = torch.exp2(torch.frexp(residuals.abs().amax(1, keepdim=True)).exponent.double())
        packed = self.packing.pack(residuals / scale)
        nodes = torch.zeros(packed.shape, dtype=torch.uint8, device=packed.device)
        histogram = self.binned.histogram(packed[:, None])  # [codes, bins, trees, nodes]
        splits: list[_Split] = []
        for level in range(depth):
            split = self._best(histogram, lots[..., 2**level : 2 ** (level + 1)])
            splits.append(split)
            for code, gain in zip(split.code.T, (split.gain * scale.square()).T, strict=True):
                importance.scatter_add_(1, code[:, None], gain[:, None])  # each tree once: CUDA adds in any order
            nodes = _children(nodes, self.binned.index, split.code, split.bin)
            if level + 1 < depth:
                left = torch.stack([packed * _equal(nodes, 2 * k).double() for k in range(2**level)], dim=1)
                sums = self.binned.histogram(left)
                histogram = torch.stack([sums, histogram - sums], dim=-1).flatten(-2)
        return splits, nodes

    def _best(self, histogram: Tensor, lots: Tensor) -> _Split:
        """The best split of every node, drawn by lot among codes that split equally well.

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
        own = count.movedim(1, -1)[code, trees[:, None], nodes]  # [trees, nodes, bins]
        after = (own <= own.gather(-1, at[..., None])).sum(-1).clamp(max=self.binned.bins - 1)
        value = (self.binned.high[code, at] + self.binned.low[code, after]) / 2
        whole_node = best <= 0
        best = best / (rows.clamp(min=1) * self.packing.one**2)
        at, value = at.masked_fill(whole_node, self.binned.bins), value.masked_fill(whole_node, math.inf)
        return _Split(best, code, at.to(self.binned.index.dtype), value)


def _bins(column: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each row's bin, and the smallest and largest value of every bin."""
    values, index, counts = np.unique(column.astype(np.float64), return_inverse=True, return_counts=True)
    of_value = np.arange(len(values))
    if len(values) > bins:
        middle = np.cumsum(counts) - counts / 2
        of_value = np.unique((middle * bins / len(column)).astype(int), return_inverse=True)[1]
    firsts = np.searchsorted(of_value, np.arange(of_value[-1] + 1))
    lasts = np.append(firsts[1:], len(values)) - 1
    return of_value[index.reshape(-1)].astype(np.int16), values[firsts], values[lasts]


def _wanted(target: Target) -> Tensor:
    """What the probabilities should be [trees, rows], or the real values."""
    values = torch.as_tensor(target.values)
    if target.trees == 1:
        return values.double()[None]
    return (values == torch.arange(target.trees)[:, None]).double()


def _start(target: Target) -> Tensor:
    """F before the first tree: the mean, or the log odds of the classes' shares."""
    if target.size is None:
        return torch.tensor([float(np.mean(target.values))], dtype=torch.float64)
    shares = torch.bincount(torch.as_tensor(target.values).long(), minlength=target.size).double() / len(target.values)
    logs = shares.clamp(1e-7, 1 - 1e-7).log()
    return (logs[1:] - logs[:1]) if target.trees == 1 else logs


def _predicted(target: Target, scores: Tensor) -> np.ndarray:
    if target.size is None:
        return scores[0].cpu().numpy()
    return (scores.argmax(0) if target.trees > 1 else (scores[0] > 0).long()).cpu().numpy()


def _children(nodes: Tensor, values: Tensor, code: Tensor, cut: Tensor) -> Tensor:
    """Node of each row [trees, rows] one level down; those below node k are 2k and 2k + 1."""
    right = torch.zeros(nodes.shape, dtype=torch.bool, device=nodes.device)
    for node in range(code.shape[1]):
        above = _above(values.index_select(0, code[:, node]), cut[:, node, None])
        right |= above & _equal(nodes, node)
    return nodes.mul(2).add_(right)


def _route(values: Tensor, splits: list[_Split]) -> Tensor:
    """Leaf of each row of codes [codes, rows] in each tree."""
    nodes = torch.zeros(len(splits[0].code), values.shape[1], dtype=torch.uint8, device=values.device)
    for split in splits:
        nodes = _children(nodes, values, split.code, split.value)
    return nodes


def _newton(residuals: Tensor, curvatures: Tensor, leaves: Tensor, count: int) -> Tensor:
    """sum r / sum p (1 - p) of every leaf [trees, leaves]; sums in fixed point, so that their order does not matter."""
    unit = 2.0 ** (52 - math.ceil(math.log2(residuals.shape[1] + 1)))
    cells = _cells(leaves, count)
    sums = []
    for values in (residuals, curvatures):
        scale = values.abs().amax(1, keepdim=True).clamp_(min=1e-300)
        fixed = (values * (unit / scale)).round_().flatten()
        sums.append(fixed.new_zeros(count * len(leaves)).index_add_(0, cells, fixed).view(-1, count) * scale)
    return torch.where(sums[1] > 0, sums[0] / sums[1], 0.0)


def _looked_up(steps: Tensor, leaves: Tensor) -> Tensor:
    """The step of every row's leaf [trees, rows]."""
    return steps.flatten().index_select(0, _cells(leaves, steps.shape[1])).view(leaves.shape)


def _cells(leaves: Tensor, count: int) -> Tensor:
    """Position of each row's leaf in a flattened [trees, leaves]."""
    first = count * torch.arange(len(leaves), dtype=torch.int32, device=leaves.device)
    return (leaves.int() + first[:, None]).flatten()


def _above(values: Tensor, cut: Tensor) -> Tensor:
    """values > cut; numpy compares many times as fast as torch on the CPU."""
    return values > cut if values.is_cuda else torch.from_numpy(values.numpy() > cut.numpy())


def _equal(values: Tensor, number: int) -> Tensor:
    """values == number, likewise."""
    return values == number if values.is_cuda else torch.from_numpy(values.numpy() == number)
