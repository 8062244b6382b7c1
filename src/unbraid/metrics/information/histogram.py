"""Mutual information by histograms: every latent in equal-width bins, all latents and factors at once."""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from unbraid.metrics.arrays import FactorLabels
from unbraid.metrics.information.stacked_histograms import measure_draws, plogp
from unbraid.metrics.intervals import draw_halves, measure_halves, no_interval, spread_at

Drawn = TypeVar("Drawn")

MAX_ROWS_PER_CHUNK = 2**16

MIN_ROWS_PER_CELL = 5
"""Below it, halves of the rows misjudge the spread: their bias differs too much from that of all rows."""

MAX_SPREAD_OF_RANGE = 0.12
"""Standard deviation, over halves of the rows, of the logarithm of a latent's range. Normal codes have .05."""


CLEAR_GAP = 0.5
"""Share of the range of the codes around an edge that a gap between clumps takes."""

MIN_ROWS_OF_GAP, MIN_ROWS_OF_VALLEY = 8, 5
DEPTH_OF_VALLEY = 2.0
"""Density of codes beside a valley, in units of that inside, from which it separates clumps."""

DEPTH_BY_CHANCE = 18.0
"""Depth that is added for valleys of one code, and for those of n codes its n-th part. With 18, none of 100 draws of 10
Normal, uniform, log-normal or t-distributed latents has a valley, at 2,000 rows and more; with 12, one or two have."""


def discretise(codes: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each code [rows, latents], from 0; bins have equal widths between a column's extremes.

    Bins include their lower edge, and the last one its upper edge, as in `numpy.histogram`. A constant column falls
    into one bin.
    """
    columns = np.ascontiguousarray(codes.T)
    return np.stack([find_bins(column, column.min(), column.max(), bins) for column in columns]).T


def discretise_by_rank(codes: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each code [rows, latents], from 0; bins have about equally many rows, equal codes share one.

    Codes of a discrete factor often form clumps. A bin that cuts off the fringe of one would hold as many rows of it as
    chance wants, so an edge moves to a clear gap if there is one within half a bin (`find_gaps`).
    """
    ordered = np.sort(codes, axis=0)
    shares, upper = find_gaps(ordered, bins)
    places = ((np.arange(1, bins) * len(codes)) // bins)[:, None]
    edges = np.take_along_axis(ordered, np.where(shares > CLEAR_GAP, upper, places), axis=0)  # [bins - 1, latents]
    columns = zip(np.ascontiguousarray(codes.T), np.ascontiguousarray(edges.T), strict=True)
    return np.stack([np.searchsorted(edge, column, side="right") for column, edge in columns]).T


def find_gaps(ordered: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the widest gap between codes near each edge of equally full bins: its share, and the row above it.

    `ordered` are sorted codes [rows, latents]; both results are [bins - 1, latents]. The share is that of the range of
    the codes within half a bin of the edge. It is 0 if these are fewer than 8, where chance makes gaps.
    """
    rows, latents = ordered.shape
    shares, upper = np.zeros((bins - 1, latents)), np.zeros((bins - 1, latents), dtype=np.intp)
    for edge in range(bins - 1):
        first, last = ((2 * edge + side) * rows // (2 * bins) for side in (1, 3))
        near = ordered[first : last + 1]
        if len(near) < MIN_ROWS_OF_GAP:
            continue
        steps = np.diff(near, axis=0)
        widest = steps.argmax(0)
        span = near[-1] - near[0]
        shares[edge] = steps[widest, np.arange(latents)] / np.where(span > 0, span, np.inf)
        upper[edge] = first + 1 + widest
    return shares, upper


def has_touching_clumps(codes: np.ndarray, bins: int) -> bool:
    """Return whether codes [rows, latents] form clumps that touch, near an edge of equally full bins.

    Chance then decides which rows of two clumps share a bin. In a valley between two clumps, a twentieth of the codes
    within a bin of the edge takes twice the room that it takes on either side; more than twice with few rows, which
    have valleys by chance. A valley with a clear gap is none: an edge moves there.
    """
    ordered = np.sort(codes, axis=0)
    rows, latents = ordered.shape
    shares, upper = find_gaps(ordered, bins)
    edges, columns = np.nonzero(shares > CLEAR_GAP)
    gaps = np.zeros((rows + 1, latents), dtype=np.intp)
    gaps[upper[edges, columns] + 1, columns] = 1
    gaps = gaps.cumsum(0)  # clear gaps below each row
    for edge in range(1, bins):
        first, last = (edge - 1) * rows // bins, (edge + 1) * rows // bins
        few = (last - first) // 20
        if few < MIN_ROWS_OF_VALLEY:
            return False  # chance makes valleys
        near, beside = ordered[first:last], 4 * few  # the least on either side
        start = np.arange(beside, len(near) - beside - few)[:, None]
        low, high = near[beside : -beside - few], near[beside + few : -beside]
        with np.errstate(divide="ignore", invalid="ignore"):  # equal codes
            left, right = start / (low - near[0]), (len(near) - start - few) / (near[-1] - high)
            depth = np.minimum(left, right) * (high - low) / few
        parted = gaps[first + start[:, 0] + few + 1] > gaps[first + start[:, 0] + 1]
        if (np.nan_to_num(np.where(parted, 0.0, depth), posinf=0.0) > DEPTH_OF_VALLEY + DEPTH_BY_CHANCE / few).any():
            return True
    return False


def find_bins(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    """Return the bin of each value by a search of the edges."""
    return np.searchsorted(np.linspace(low, high, bins + 1)[:-1], values, side="right") - 1


class JointHistograms:
    """Joint histograms of every latent with every factor, counted on the CPU or on CUDA."""

    def __init__(self, binned: np.ndarray, bins: int, labels: FactorLabels, device: torch.device | str = "cpu") -> None:
        values = max(labels.sizes)
        self.shape = (binned.shape[1], len(labels.sizes), bins, values)
        first = np.arange(len(labels.sizes))[:, None] * (bins * values)
        self.of_latent = np.ascontiguousarray(binned.T) * values  # [latents, rows]
        self.of_factor = np.ascontiguousarray(labels.values.T) + first  # [factors, rows]
        self.device = torch.device(device)

    def information(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return I(z_j; v_k) [latents, factors] and H(v_k) [factors] in nats, over all rows or over `rows`."""
        return _compute_information(self._counts(rows))

    def corrected_information(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return what `information` does without the bias of a plug-in estimate (miller1955).

        Half a degree of freedom per row is subtracted for each occupied cell beyond those of the margins.
        """
        counts = self._counts(rows)
        information, entropies = _compute_information(counts)
        chance, of_factor = _count_chance(counts)
        return information - chance, entropies + of_factor

    def measure_chance(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of the information [latents, factors] if rows get the factors of other rows.

        Cells with less than a row make both larger than the degrees of freedom say.
        """
        shuffled, orders = copy.copy(self), (rng.permutation(self.of_factor.shape[1]) for _ in range(count))
        drawn = []
        for order in orders:
            shuffled.of_factor = self.of_factor[:, order]
            drawn.append(shuffled.informations([None])[0][0])
        return np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1)

    def draw_half_errors(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw errors of I [count, latents, factors] and H [count, factors] over a random half of the rows.

        An error is the mean, with random signs, of each row's influence on I and H:  log p(z, v) / p(z) p(v) - I  and
        -log p(v) - H. Chance cells give the influence a variance of d / n for d degrees of freedom, so that a mean over
        n / 2 rows gets 2 d / n^2: just the variance of the information of n / 2 rows without dependence.
        """
        rows = self.of_factor.shape[1]
        joint = self._counts(None) / rows
        of_values = np.broadcast_to(joint[:1].sum(2, keepdims=True), joint[:1].shape)
        p = np.concatenate([joint, joint[:1]])  # a table for each latent, the last one for H
        above = np.concatenate([joint, np.ones_like(of_values)])
        below = np.concatenate([joint.sum(3, keepdims=True) * joint.sum(2, keepdims=True), of_values])
        logs = np.log(np.divide(above, below, where=p > 0, out=np.ones_like(p)))
        tables = (logs - (p * logs).sum((2, 3), keepdims=True)).reshape(len(p), -1).astype(np.float32)
        errors = np.zeros((len(p), len(self.of_factor), count))
        for start in range(0, rows, MAX_ROWS_PER_CHUNK):
            part = slice(start, start + MAX_ROWS_PER_CHUNK)
            of_latents = self.of_latent[[*range(len(joint)), 0], part]
            cells = self.of_factor[:, part]
            influence = [table[cells + own] for table, own in zip(tables, of_latents, strict=True)]
            signs = rng.integers(0, 2, (cells.shape[1], count), dtype=np.int8).astype(np.float32) * 2 - 1
            errors += np.stack(influence) @ signs
        errors = errors.transpose(2, 0, 1) * (math.sqrt(2) / rows)
        return errors[:, :-1], errors[:, -1]

    def informations(self, draws: Sequence[np.ndarray | None]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the `information` of several draws of rows."""
        if self.device.type != "cuda":
            return [self.information(rows) for rows in draws]
        of_latent, of_factor = (
            torch.as_tensor(cells, device=self.device) for cells in (self.of_latent, self.of_factor)
        )
        start = torch.arange(len(of_latent), device=self.device) * math.prod(self.shape[1:])
        cells = (of_latent[:, None] + of_factor + start[:, None, None]).flatten(0, 1)  # [latents x factors, rows]
        results = []
        for rows in draws:
            chosen = cells if rows is None else cells[:, torch.as_tensor(rows, device=self.device)]
            joint = torch.zeros(math.prod(self.shape), dtype=torch.float64, device=self.device)
            joint.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=torch.float64))
            joint = joint.view(self.shape) / chosen.shape[1]
            latent, factor = plogp(joint.sum(3)).sum(2), plogp(joint.sum(2)).sum(2)
            results.append(torch.cat([latent + factor - plogp(joint).sum((2, 3)), factor[:1]]))
        return [(one[:-1], one[-1]) for one in torch.stack(results).cpu().numpy()] if results else []

    def _counts(self, rows: np.ndarray | None) -> np.ndarray:
        total = np.zeros((self.shape[0], math.prod(self.shape[1:])), dtype=np.int64)
        count = self.of_factor.shape[1] if rows is None else len(rows)
        for start in range(0, count, MAX_ROWS_PER_CHUNK):
            part = (
                slice(start, start + MAX_ROWS_PER_CHUNK) if rows is None else rows[start : start + MAX_ROWS_PER_CHUNK]
            )
            of_factor = self.of_factor[:, part]
            for counts, of_latent in zip(total, self.of_latent, strict=True):  # one at a time stays in the cache
                counts += np.bincount((of_latent[part] + of_factor).ravel(), minlength=len(counts))
        return total.reshape(self.shape)


def _count_chance(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much chance raises I [latents, factors], and lowers H [factors], on average."""
    tables = (counts, counts.sum(3, keepdims=True), counts.sum(2, keepdims=True))
    cells, of_latent, of_factor = ((part > 0).sum(axis=(-2, -1)) for part in tables)
    total = 2 * counts[0, 0].sum()
    return (cells - of_latent - of_factor + 1) / total, (of_factor[0] - 1) / total


def _compute_information(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return I [latents, factors] and H [factors] of counts [latents, factors, bins, values]."""
    from scipy.special import entr

    joint = counts / counts[0, 0].sum()
    of_latent, of_factor = entr(joint.sum(3)).sum(2), entr(joint.sum(2)).sum(2)
    return of_latent + of_factor - entr(joint).sum((2, 3)), of_factor[0]


class HalfInformation(NamedTuple):
    """I [latents, factors] and H [factors] of random halves of the rows, and what an interval from them covers."""

    drawn: list[tuple[np.ndarray, np.ndarray]]
    covers: str


def measure_half_information(
    codes: np.ndarray,
    labels: FactorLabels,
    bins: int | None,
    count: int,
    rng: np.random.Generator,
    device: torch.device | str = "cpu",
) -> HalfInformation:
    """Measure the information of random halves, each in bins of its own; without `bins`, codes are bins already.

    There are no halves if they would misjudge the spread; `covers` then says why.
    """
    cells = (int(codes.max()) + 1 if bins is None else bins) * max(labels.sizes)
    if len(codes) < MIN_ROWS_PER_CELL * cells:
        return HalfInformation([], no_interval(f"{len(codes):,} rows are too few for histograms of {cells:,} cells"))
    if bins is None:
        rows = [rows for (rows,) in draw_halves([len(codes)], count, rng)]
        found = JointHistograms(codes, int(codes.max()) + 1, labels, device).informations(rows)
        return HalfInformation(found, spread_at(len(codes)))

    if torch.device(device).type == "cuda":
        halves = [rows for (rows,) in draw_halves([len(codes)], count, rng)]
        return HalfInformation(*judge_halves(*measure_draws(codes, labels, bins, halves, device), len(codes)))

    def measure(rows: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        some = codes[rows]
        histograms = JointHistograms(discretise(some, bins), bins, labels.select(rows), device)
        return np.ptp(some, axis=0), histograms.informations([None])[0]

    drawn = measure_halves(measure, [len(codes)], count, rng)
    return HalfInformation(*judge_halves([width for width, _ in drawn], [found for _, found in drawn], len(codes)))


def judge_halves(ranges: Sequence[np.ndarray], found: list[Drawn], rows: int) -> tuple[list[Drawn], str]:
    """Return what was found in halves of the rows, and what an interval from it covers; nothing if it misleads.

    `ranges` [halves, latents] are the widths of all bins of a latent. If they jump with a few rows, halves, half of
    which hold a given row, see less of the jumps than other draws of rows would.
    """
    if len(found) < 2:
        return [], no_interval("it needs resamples=2 or more")
    widths = np.stack(ranges)
    varies = (widths > 0).all(0)
    if varies.any() and np.log(widths[:, varies]).std(0, ddof=1).max() > MAX_SPREAD_OF_RANGE:
        return [], no_interval("a few rows far from all others set the width of the bins")
    return found, spread_at(rows)
