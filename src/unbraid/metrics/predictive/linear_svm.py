r"""Linear support vector machines of one feature: every latent for every value of every factor, all at once.

    1/2 (w^2 + b^2) + C sum_i c_i max(0, 1 - y_i (w x_i + b))^2

With one feature, the rows with a positive loss lie on one side of a threshold. Sorted values and prefix sums of 1, x
and x^2 give loss, gradient and Hessian of a problem by binary search, and the Newton steps of all problems cost no more
than the sums. A table is sorted once for fits to many subsets of its rows. The weights c are those of LIBLINEAR for
`class_weight="balanced"`: n / (K n_k) for the rows of a value and 1 for the rest; with two values n / (2 n_k) on both
sides.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

MAX_ENTRIES = 2**22
"""Entries that are sorted or compared at once: rows x latents x factors, or rows x latents x values of a factor."""

ROWS_PER_STRETCH = 32
"""Rows in a stretch; a prediction first computes all lines at its two ends."""


class SortedTable(NamedTuple):
    """Codes [all rows, latents], labels [factors, all rows], and the `rows` in use.

    `order` [latents, rows] holds the rows in use in ascending order of each latent.
    """

    codes: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, labels: np.ndarray) -> "SortedTable":
        """Sort codes [rows, latents]; labels [rows, factors] are integers from 0."""
        short = np.int16 if labels.max() < 2**15 else np.int64  # numpy sorts short integers by radix
        order = np.argsort(np.ascontiguousarray(codes.T), axis=1)
        return cls(codes, np.ascontiguousarray(labels.T, dtype=short), np.arange(len(codes)), order)

    def select(self, rows: np.ndarray) -> "SortedTable":
        """Return the table with only some of its rows in use, each once; nothing is sorted again."""
        chosen, order = np.zeros(len(self.codes), dtype=bool), self.order.ravel()
        chosen[rows] = True
        return self._replace(rows=rows, order=order.compress(chosen.take(order)).reshape(-1, len(rows)))

    def ascending_codes(self) -> np.ndarray:
        """Return the codes [latents, rows] in `order`."""
        latents = len(self.order)
        return self.codes.take(self.order * latents + np.arange(latents)[:, None])

    def ascending_labels(self) -> np.ndarray:
        """Return the labels [factors, latents, rows] in `order`."""
        return self.labels.take(self.order, axis=1)


class Lines(NamedTuple):
    """Decision functions weight * x + offset [latents, values of all factors]; `blocks` are the factors' columns."""

    weight: np.ndarray
    offset: np.ndarray
    blocks: tuple[slice, ...]
    values: tuple[np.ndarray, ...]

    def predict(self, table: SortedTable) -> np.ndarray:
        """Return the value of each factor that each latent predicts [factors, latents, rows], in `table.order`."""
        x, predicted = table.ascending_codes(), []
        for block, values in zip(self.blocks, self.values, strict=True):
            weight, offset = self.weight[:, block], self.offset[:, block]
            if len(values) == 2:  # the second value where its line is above 0
                weight, offset = (np.insert(of, 0, 0.0, axis=1) for of in (weight, offset))
            parts = _split_latents(len(x), x.shape[1] * weight.shape[1])
            best = np.concatenate([find_highest_lines(weight[part], offset[part], x[part]) for part in parts])
            predicted.append(values.take(best))
        return np.stack(predicted)


def find_highest_lines(weight: np.ndarray, offset: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the first of the highest lines weight * x + offset [latents, lines] at ascending x [latents, rows].

    A line that is highest at two values of x, by more than rounding errors, is highest between them. So all lines are
    computed at the ends of stretches first, and at each row only of the stretches that this does not settle.
    """
    last = x.shape[1] - 1
    ends = np.append(np.arange(0, last, ROWS_PER_STRETCH), last)
    at = x[:, ends]
    heights = weight[:, None] * at[..., None] + offset[:, None]  # [latents, ends, lines]
    best = heights.argmax(2)
    flat, each = heights.reshape(best.size, -1), np.arange(best.size)
    top = flat[each, best.ravel()]
    flat[each, best.ravel()] = -np.inf
    lead = (top - flat[each, flat.argmax(1)]).reshape(best.shape)
    size = (np.abs(weight) * np.abs(at).max(1, keepdims=True) + np.abs(offset)).max(1, keepdims=True)
    clear = lead > 8 * np.finfo(np.float64).eps * size  # a height is off by at most eps * size
    settled = (best[:, 1:] == best[:, :-1]) & ((clear[:, 1:] & clear[:, :-1]) | (at[:, 1:] == at[:, :-1]))
    highest = best.repeat(np.diff(ends, append=last + 1), axis=1)
    latent, stretch = (of[:, None] for of in np.nonzero(~settled))
    rows = np.minimum(ends[stretch] + np.arange(ROWS_PER_STRETCH), last)
    highest[latent, rows] = (weight[latent] * x[latent, rows][..., None] + offset[latent]).argmax(2)
    return highest


def fit_lines(table: SortedTable, *, C: float = 0.01) -> Lines:
    """Fit a support vector machine of each latent for each factor.

    A factor with two values is one problem, as in scikit-learn; a factor with one value predicts it.
    """
    parts = _split_latents(len(table.order), len(table.rows) * len(table.labels))
    fitted = [_fit(table._replace(codes=table.codes[:, part], order=table.order[part]), C) for part in parts]
    weight, offset = (np.concatenate(of) for of in ([p.weight for p in fitted], [p.offset for p in fitted]))
    return fitted[0]._replace(weight=weight, offset=offset)


def _split_latents(latents: int, entries: int) -> list[slice]:
    """Return slices of latents, each of which has that many entries."""
    at_once = max(1, MAX_ENTRIES // entries)
    return [slice(j, j + at_once) for j in range(0, latents, at_once)]


def _fit(table: SortedTable, C: float) -> Lines:
    sums = _PrefixSums(table)
    values = tuple(np.flatnonzero(count) for count in sums.counts)
    positive = [present[1:] if len(present) == 2 else present for present in values]
    problems = sums.list_problems(positive, C)
    w, u = _solve(sums, problems)
    shape, edges = (len(table.order), -1), np.cumsum([0, *map(len, positive)]).tolist()
    blocks = tuple(slice(a, b) for a, b in pairwise(edges))
    return Lines(w.reshape(shape), (u - w * problems.mean).reshape(shape), blocks, values)


class _Problems(NamedTuple):
    """Problems "this value or another", latent by latent: where `_PrefixSums` holds their rows, and C c of both sides.

    The line of a problem is w x + u for centred x, so u = b + w mean; `reach` is the greatest |x|.
    """

    latent: np.ndarray
    mean: np.ndarray
    reach: np.ndarray
    pair: np.ndarray
    base: np.ndarray
    first: np.ndarray
    last: np.ndarray
    C_positive: np.ndarray
    C_negative: np.ndarray

    def select(self, which: np.ndarray) -> "_Problems":
        return _Problems(*(of[which] for of in self))

    def evaluate(
        self, at: np.ndarray, positive: np.ndarray, negative: np.ndarray
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Return the loss [problems] at (w, u), its gradient, and (ww, wu, uu, determinant) of its Hessian.

        `positive` and `negative` are sums of C c, C c x and C c x^2 over the rows of each side that have a loss there.
        """
        (w, u), (p0, p1, p2), (n0, n1, n2), mean = at, positive, negative, self.mean
        s0, s1, s2 = p0 + n0, p1 + n1, p2 + n2
        b = u - w * mean
        loss = s2 * w * w + 2 * s1 * w * u + s0 * u * u + 2 * w * (n1 - p1) + 2 * u * (n0 - p0) + s0
        gradient = w - mean * b + 2 * (s2 * w + s1 * u + n1 - p1), b + 2 * (s1 * w + s0 * u + n0 - p0)
        raw = s2 + mean * (2 * s1 + mean * s0)  # sum of C c x^2 before centring
        determinant = 1 + 2 * s0 + 2 * raw + 4 * (s0 * s2 - s1 * s1)  # as written, nothing large cancels
        hessian = 1 + mean**2 + 2 * s2, 2 * s1 - mean, 1 + 2 * s0, determinant
        return 0.5 * (w * w + b * b) + loss, gradient, hessian


def _solve(sums: "_PrefixSums", problems: _Problems) -> np.ndarray:
    """Return (w, u) of each problem [2, problems].

    Newton steps, halved until they help, end at the minimum of a piecewise quadratic loss. Most problems need one step
    and few need many: rows with a loss are summed again only for problems that are not solved or whose lines move.
    """
    at = np.zeros((2, len(problems.latent)))
    positive, negative = sums.sum_all_rows(problems)  # at 0, every row has a loss
    value, (gw, gu), hessian = problems.evaluate(at, positive, negative)
    enough = 1e-11 * np.maximum(1.0, np.maximum(np.abs(gw), np.abs(gu)))
    for _ in range(200):
        ww, wu, uu, determinant = hessian
        step = np.stack([wu * gu - uu * gw, wu * gw - ww * gu]) / determinant
        slope = gw * step[0] + gu * step[1]
        unsolved = (np.maximum(np.abs(gw), np.abs(gu)) > enough) & (slope <= -1e-16 * value)
        if not unsolved.any():
            break
        moved = np.abs(step[0]) * problems.reach + np.abs(step[1]) > 1e-9  # of a line that is 1 at the margin
        which = np.flatnonzero(unsolved | moved)
        size, allowed, some = np.ones_like(value), value * (1 + 1e-14), problems.select(which)
        for _ in range(40):
            trial = at + size * step
            positive[:, which], negative[:, which] = sums.sum_rows_with_loss(some, *trial[:, which])
            value, (gw, gu), hessian = problems.evaluate(trial, positive, negative)
            worse = value > allowed + 1e-4 * size * slope
            if not worse.any():
                break
            size[worse] /= 2
        at = at + size * step
    return at


class _PrefixSums:
    """Sums of 1, x and x^2 over the rows below a rank: of all rows of a latent, or of one value; x is centred.

    The rows of each pair of a latent and a factor are sorted by value, then by x. `keys` are their ranks among all
    rows, raised from value to value and pair to pair, so that one binary search finds ranks in all of them.
    """

    def __init__(self, table: SortedTable) -> None:
        self.mean = table.codes.take(table.rows, axis=0).mean(0)
        self.x = table.ascending_codes() - self.mean[:, None]  # [latents, rows]
        self.counts = [np.bincount(labels.take(table.rows)) for labels in table.labels]
        (latents, rows), factors = self.x.shape, len(self.counts)
        self.width = max(map(len, self.counts)) * (rows + 1)
        keys = np.empty((latents, factors, rows), dtype=np.int64)
        of_values = np.zeros((latents, factors, rows + 1), dtype=np.complex128)
        of_all = np.zeros((latents, rows + 1), dtype=np.complex128)
        latent = np.arange(latents)[:, None]
        for k, (labels, count) in enumerate(zip(table.labels, self.counts, strict=True)):
            ranks = np.argsort(labels.take(table.order), axis=1, kind="stable")
            np.add(ranks, (latent * factors + k) * self.width, out=keys[:, k])
            keys[:, k] += np.arange(len(count)).repeat(count) * (rows + 1)
            _sum_prefixes(self.x.take(ranks + latent * rows), of_values[:, k])
        _sum_prefixes(self.x, of_all)
        self.keys, self.of_values, self.of_all = keys.ravel(), of_values.ravel(), of_all.ravel()

    def list_problems(self, positive: Sequence[np.ndarray], C: float) -> _Problems:
        """Return the problems of all latents for the `positive` values of each factor."""
        (latents, rows), of_factors = self.x.shape, []
        for k, (values, count) in enumerate(zip(positive, self.counts, strict=True)):
            present = count[count > 0]
            own = rows / (len(present) * count[values])
            rest = np.full(len(values), rows / (2 * present[0]) if len(present) == 2 else 1.0)
            factor, first = np.full(len(values), k), np.cumsum(count)[values] - count[values]
            of_factors.append((factor, values, first, count[values], C * own, C * rest))
        factor, value, first, count, *weights = (np.concatenate(of) for of in zip(*of_factors, strict=True))
        latent = np.arange(latents).repeat(len(value))
        pair = latent * len(self.counts) + np.tile(factor, latents)
        base = pair * self.width + np.tile(value, latents) * (rows + 1)
        first = pair * (rows + 1) + np.tile(first, latents)  # a prefix sum has one entry more than its column
        last = first + np.tile(count, latents)
        mean, reach = (of[latent] for of in (self.mean, np.abs(self.x).max(1)))
        return _Problems(latent, mean, reach, pair, base, first, last, *np.tile(weights, latents))

    def sum_all_rows(self, problems: _Problems) -> tuple[np.ndarray, np.ndarray]:
        """Return sums of C c, C c x and C c x^2 [3, problems] over the rows of the value, and over the others."""
        rows = self.x.shape[1]
        start = problems.latent * (rows + 1)
        of_value = _sum_between(self.of_values, problems.first, problems.last)
        rest = _sum_between(self.of_all, start, start + rows) - of_value
        return problems.C_positive * of_value, problems.C_negative * rest

    def sum_rows_with_loss(self, problems: _Problems, w: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same sums over the rows that have a loss at (w, u)."""
        rows, up = self.x.shape[1], np.signbit(w) == 0
        with np.errstate(divide="ignore", invalid="ignore"):
            rank = self._rank(problems.latent, np.stack([(1.0 - u) / w, (-1.0 - u) / w]))
        place = np.searchsorted(self.keys, problems.base + rank) + problems.pair
        below = np.stack([up, ~up])
        first, last = np.where(below, problems.first, place), np.where(below, place, problems.last)
        positive, of_value = _sum_between(self.of_values, first, last).swapaxes(0, 1)
        start = problems.latent * (rows + 1)
        place = start + rank[1]
        rest = _sum_between(self.of_all, np.where(up, place, start), np.where(up, start + rows, place)) - of_value
        return problems.C_positive * positive, problems.C_negative * rest

    def _rank(self, latent: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """Return the number of a latent's values below each threshold [..., problems]."""
        rank = np.empty(thresholds.shape, dtype=np.int64)
        edges = np.searchsorted(latent, np.arange(len(self.x) + 1)).tolist()
        for x, (a, b) in zip(self.x, pairwise(edges), strict=True):
            rank[:, a:b] = x.searchsorted(thresholds[:, a:b])
        return rank


def _sum_prefixes(x: np.ndarray, out: np.ndarray) -> None:
    """Write sums of x + i x^2 over the first 0, 1, … entries of each row to `out`, which holds zeros."""
    out.real[:, 1:] = x
    np.multiply(x, x, out=out.imag[:, 1:])
    torch.from_numpy(out).cumsum_(1)  # one complex sum by torch is faster than two real ones by numpy


def _sum_between(sums: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return sums of 1, x and x^2 [3, …] from `first` to before `last`."""
    total = sums[last] - sums[first]
    return np.stack([last - first, total.real, total.imag])
