r"""Mutual information of a continuous latent and a discrete factor by nearest neighbours (ross2014).

    I(z; v) = psi(n) + mean_i [ psi(k_i) - psi(n_{v_i}) - psi(m_i) ],    at least 0

k_i is the number of neighbours asked for (fewer where row i's value has fewer rows), n_v how many rows have value v,
and m_i how many rows, itself included, lie nearer than row i's k_i-th neighbour of the same value. Rows whose value is
theirs alone are left out. In one dimension neighbours are next to each other once sorted, so no tree is needed.
"""

import numpy as np
from scipy.special import digamma

from unbraid.metrics.arrays import Labels

JITTER = 1e-10
"""Standard deviation of what is added to standardised codes, so that equal ones have an order (kraskov2004)."""


def neighbour_information(codes: np.ndarray, labels: Labels, neighbours: int, seed: int) -> np.ndarray:
    """I(z_j; v_k) [latents, factors] in nats; a constant latent has none."""
    x = standard_codes(codes) + JITTER * np.random.default_rng(seed).standard_normal(len(codes))[:, None]
    known = np.ptp(codes, axis=0) > 0
    found = np.zeros((codes.shape[1], len(labels.sizes)))
    for k, column in enumerate(labels.values.T):
        counts = np.bincount(column)
        rows = counts[column] > 1
        if known.any() and rows.any():
            found[known, k] = _information(x[rows][:, known].T, column[rows], neighbours)
    return found


def standard_codes(codes: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1, and the first row that is not at the mean above it.

    So a latent and its mirror image are the same before ties are broken.
    """
    centred = codes - codes.mean(0)
    scale = centred.std(0)
    centred = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    first = np.take_along_axis(centred, (centred != 0).argmax(0)[None], axis=0)[0]
    return centred * np.where(first < 0, -1.0, 1.0)


def _information(x: np.ndarray, labels: np.ndarray, neighbours: int) -> np.ndarray:
    """[latents] of columns x [latents, rows] whose labels all occur at least twice."""
    rows = x.shape[1]
    order = np.argsort(x, axis=1)
    ordered = np.take_along_axis(x, order, axis=1)
    runs = np.argsort(labels[order], axis=1, kind="stable")  # each value's rows together, sorted by x
    own = np.take_along_axis(ordered, runs, axis=1)
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    count = np.repeat(counts, counts)
    asked = np.minimum(neighbours, count - 1)
    radius = _radius(own, np.repeat(np.cumsum(counts) - counts, counts), count, asked)
    nearer = np.stack([_nearer(*column) for column in zip(ordered, own, runs, radius, strict=True)])
    psi = digamma(np.arange(rows + 1).clip(1))
    information = psi[rows] + (psi[asked] - psi[count]).mean() - psi[nearer].mean(1)
    return np.maximum(information, 0.0)


def _radius(own: np.ndarray, first: np.ndarray, count: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Distance to the k-th neighbour [latents, rows] in runs of sorted values.

    These neighbours and the row itself are k + 1 values in a row: of all such windows, the one that reaches least far.
    """
    place = np.arange(own.shape[1])
    radius = np.full(own.shape, np.inf)
    for before in range(int(asked.max()) + 1):
        low, high = place - before, place - before + asked
        inside = (before <= asked) & (low >= first) & (high < first + count)
        i, low, high = place[inside], low[inside], high[inside]
        reach = np.maximum(own[:, i] - own[:, low], own[:, high] - own[:, i])
        radius[:, inside] = np.minimum(radius[:, inside], reach)
    return radius


def _nearer(ordered: np.ndarray, own: np.ndarray, rank: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """How many of all sorted values lie nearer to each own value, of the given rank, than its radius."""
    low = np.minimum(np.searchsorted(ordered, own - radius), rank)
    high = np.maximum(np.searchsorted(ordered, own + radius), rank + 1)
    last = len(ordered) - 1
    for _ in range(8):  # own - radius is rounded, and the neighbour at the radius itself must stay out
        wide = (low < rank) & (own - ordered[low] >= radius)
        narrow = (low > 0) & (own - ordered[np.maximum(low - 1, 0)] < radius)
        over = (high > rank + 1) & (ordered[high - 1] - own >= radius)
        under = (high <= last) & (ordered[np.minimum(high, last)] - own < radius)
        if not (wide | narrow | over | under).any():
            break
        low, high = low + wide - narrow, high - over + under
    return high - low
