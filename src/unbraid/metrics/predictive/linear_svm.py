r"""Linear support vector machines of one feature: every latent for every value of every factor, all at once.

    1/2 (w^2 + b^2) + C sum_i c_i max(0, 1 - y_i (w x_i + b))^2

With one feature, the rows with a positive loss lie on one side of a threshold. Sorted values and prefix sums of 1, x
and x^2 give loss, gradient and Hessian of a problem by binary search, and the Newton steps of all problems cost less
than the sort. The weights c are those of LIBLINEAR for `class_weight="balanced"`: n / (K n_k) for the rows of a value
and 1 for the rest; with two values n / (2 n_k) on both sides.
"""

from typing import NamedTuple

import numpy as np

MAX_SORTED_ENTRIES = 2**22
"""Entries, rows x latents x factors, that are sorted at once."""


class Lines(NamedTuple):
    """Decision functions weight * x + offset [latents, values of all factors]; `blocks` are the factors' columns."""

    weight: np.ndarray
    offset: np.ndarray
    blocks: tuple[slice, ...]
    values: tuple[np.ndarray, ...]

    def predict(self, codes: np.ndarray) -> np.ndarray:
        """Return the value of each factor that each latent predicts [rows, latents, factors]."""
        predicted = np.empty((*codes.shape, len(self.blocks)), dtype=np.int64)
        for j, column in enumerate(codes.T):
            for k, (block, values) in enumerate(zip(self.blocks, self.values, strict=True)):
                lines = self.weight[j, block, None] * column + self.offset[j, block, None]  # [values, rows]
                best = lines[0] > 0 if len(lines) == 1 and len(values) == 2 else lines.argmax(0)
                predicted[:, j, k] = values[best.astype(np.int64)]
        return predicted


def fit_lines(codes: np.ndarray, labels: np.ndarray, *, C: float = 0.01) -> Lines:
    """Fit a support vector machine of each latent [rows, latents] for each column of labels [rows, factors].

    A factor with two values is one problem, as in scikit-learn; a factor with one value predicts it.
    """
    parts = 1 + codes.size * labels.shape[1] // MAX_SORTED_ENTRIES
    solved = [_solve(_Problems(part, labels, C)) for part in np.array_split(codes, parts, axis=1) if part.size]
    weight, offset = (np.concatenate(of) for of in ([p.weight for p in solved], [p.offset for p in solved]))
    return solved[0]._replace(weight=weight, offset=offset)


def _solve(problems: "_Problems") -> Lines:
    """Take Newton steps in (w, u), halved until they help; on a piecewise quadratic loss they end at the minimum."""
    shape = problems.base.shape
    w, u = np.zeros(shape), np.zeros(shape)
    value, gradient, hessian = problems.evaluate(w, u)
    enough = 1e-11 * np.abs(gradient).max(0, initial=1.0)
    for _ in range(200):
        (gw, gu), (ww, wu, uu, determinant) = gradient, hessian
        step_w, step_u = (wu * gu - uu * gw) / determinant, (wu * gw - ww * gu) / determinant
        slope = gw * step_w + gu * step_u
        if ((np.abs(gradient).max(0) <= enough) | (slope > -1e-16 * value)).all():
            break
        size, allowed = np.ones(shape), value * (1 + 1e-14)
        for _ in range(40):
            value, gradient, hessian = problems.evaluate(w + size * step_w, u + size * step_u)
            worse = value > allowed + 1e-4 * size * slope
            if not worse.any():
                break
            size[worse] /= 2
        w, u = w + size * step_w, u + size * step_u
    return Lines(w, u - w * problems.mean[:, None], problems.blocks, problems.values)


class _Problems:
    """Sorted columns and prefix sums by value of all one-feature problems; x is centred, so u = b + w mean."""

    def __init__(self, codes: np.ndarray, labels: np.ndarray, C: float) -> None:
        self.mean = codes.mean(0)
        order = np.argsort(codes, axis=0).T  # [latents, rows]
        self.x = np.take_along_axis((codes - self.mean).T, order, axis=1)
        self.sums = _sum_prefixes(self.x)
        self.values, coded = zip(*(np.unique(column, return_inverse=True) for column in labels.T), strict=True)
        factor, blocks, weights = [], [], []
        for k, inverse in enumerate(coded):
            count = np.bincount(inverse)
            balanced = len(codes) / (len(count) * count)
            two = len(count) == 2
            weights += [(1, balanced[1], balanced[0])] if two else [(c, own, 1.0) for c, own in enumerate(balanced)]
            blocks.append(slice(len(factor), len(weights)))
            factor += [k] * (len(weights) - len(factor))
        self.blocks = tuple(blocks)
        positive, *balance = np.array(weights).T
        self.C_positive, self.C_negative = C * np.stack(balance)
        self._group_by_value(np.stack(coded), order, np.array(factor), positive.astype(np.int64))

    def _group_by_value(self, coded: np.ndarray, order: np.ndarray, factor: np.ndarray, positive: np.ndarray) -> None:
        """Sort each column into runs of equal labels, each run by x, and sum prefixes along the runs."""
        (latents, rows), factors = order.shape, len(coded)
        coded = coded.astype(np.int16 if coded.max() < 2**15 else np.int64)  # numpy sorts short integers by radix
        runs = np.argsort(coded[:, order], axis=2, kind="stable")  # [factors, latents, rows]: ranks in sorted x
        sorted_labels = np.sort(coded, axis=1)[:, None, :].astype(np.int64)
        width = (int(coded.max()) + 1) * (rows + 1)
        pair = np.arange(factors * latents).reshape(factors, latents, 1) * width
        self.keys = (pair + sorted_labels * (rows + 1) + runs).reshape(-1)
        self.run_sums = _sum_prefixes(np.take_along_axis(self.x[None], runs, axis=2)).reshape(3, -1)
        self.base = pair[factor, :, 0].T + positive * (rows + 1)  # [latents, problems]
        self.shift = pair[factor, :, 0].T // width  # a prefix sum has one entry more than its column
        self.first, self.last = (self.run_sums[:, self._place(rank)] for rank in (0, rows))

    def evaluate(self, w: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the loss [latents, problems], its gradient in (w, u), and (ww, wu, uu, determinant) of its Hessian."""
        with np.errstate(divide="ignore", invalid="ignore"):
            below_one, below_minus = (self._rank((edge - u) / w) for edge in (1.0, -1.0))
        up = np.signbit(w) == 0
        positive = self._sum_positive(below_one, up)
        negative = self._sum_all(below_minus, ~up) - self._sum_positive(below_minus, ~up)
        p0, p1, p2 = self.C_positive * positive
        n0, n1, n2 = self.C_negative * negative
        s0, s1, s2 = p0 + n0, p1 + n1, p2 + n2
        mean = self.mean[:, None]
        b = u - w * mean
        loss = s2 * w * w + 2 * s1 * w * u + s0 * u * u + 2 * w * (n1 - p1) + 2 * u * (n0 - p0) + s0
        gradient = [w - mean * b + 2 * (s2 * w + s1 * u + n1 - p1), b + 2 * (s1 * w + s0 * u + n0 - p0)]
        raw = s2 + mean * (2 * s1 + mean * s0)  # sum of c x^2 before centring
        determinant = 1 + 2 * s0 + 2 * raw + 4 * (s0 * s2 - s1 * s1)  # as written, nothing large cancels
        hessian = [1 + mean**2 + 2 * s2, 2 * s1 - mean, 1 + 2 * s0, determinant]
        return 0.5 * (w * w + b * b) + loss, np.stack(gradient), np.stack(hessian)

    def _rank(self, thresholds: np.ndarray) -> np.ndarray:
        """Return the number of a latent's values below each threshold."""
        return np.stack([np.searchsorted(x, t) for x, t in zip(self.x, thresholds, strict=True)])

    def _sum_all(self, rank: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Return sums of 1, x and x^2 over a latent's values below the rank, or over the others."""
        under = self.sums[:, np.arange(len(rank))[:, None], rank]
        return np.where(below, under, self.sums[:, :, -1:] - under)

    def _sum_positive(self, rank: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Return the same sums over the rows of the problem's value."""
        at = self.run_sums[:, self._place(rank)]
        return np.where(below, at - self.first, self.last - at)

    def _place(self, rank: np.ndarray | int) -> np.ndarray:
        return np.searchsorted(self.keys, self.base + rank) + self.shift


def _sum_prefixes(x: np.ndarray) -> np.ndarray:
    """Return sums of 1, x and x^2 over the first 0, 1, … entries of each row [3, rows, entries + 1]."""
    sums = np.zeros((3, *x.shape[:-1], x.shape[-1] + 1))
    for total, power in zip(sums, (np.ones_like(x), x, x * x), strict=True):
        np.cumsum(power, axis=-1, out=total[..., 1:])
    return sums
