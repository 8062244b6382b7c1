r"""Mutual information of continuous latents and a discrete factor by nearest neighbours (ross2014).

    I(z; v) = psi(n) + mean_i [ psi(k_i) - psi(n_{v_i}) - psi(m_i) ],    at least 0

k_i is the number of neighbours (fewer if few rows have the value of row i), n_v the number of rows with value v, and
m_i the number of rows, including row i, that are nearer than the k_i-th neighbour with the same value. Rows whose value
no other row has are left out. Sorted values have their neighbours next to them, so one dimension needs no tree. For
several latents together, the distance of two rows is the greatest one in any latent, and all pairs are compared.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels
from unbraid.metrics.intervals import draw_halves
from unbraid.progress import track
from unbraid.threads import count_python_threads, one_thread

MAX_PAIRS_AT_ONCE = 2**24
"""Pairs of rows whose distances are in memory at once."""

JITTER = 1e-10
"""Standard deviation of the noise on standardised codes that gives equal codes an order (kraskov2004)."""


def estimate_information(
    codes: np.ndarray,
    labels: FactorLabels,
    neighbours: int,
    seed: int,
    device: torch.device | str = "cpu",
    at_least: float = 0.0,
    together: bool = False,
) -> np.ndarray:
    """Return I(z_j; v_k) [latents, factors] in nats, 0 for a constant latent.

    With `together`, return I(z; v_k) [1, factors] of all latents z.
    """
    jitter = JITTER * np.random.default_rng(seed).standard_normal(len(codes))
    varies = np.ptp(codes, axis=0) > 0
    x = torch.as_tensor((standardise_codes(codes[:, varies]) + jitter[:, None]).T.copy(), device=device)
    information = np.zeros((1 if together else codes.shape[1], len(labels.sizes)))
    places = np.array([True]) if together else varies
    for k, column in enumerate(labels.values.T):
        rows = np.flatnonzero(np.bincount(column)[column] > 1)
        if varies.any() and len(rows):
            chosen = x if len(rows) == len(column) else x[:, torch.as_tensor(rows, device=device)]
            information[places, k] = (_estimate_together if together else _estimate)(chosen, column[rows], neighbours)
    return information.clip(at_least)


def estimate_with_halves(
    codes: np.ndarray,
    labels: FactorLabels,
    neighbours: int,
    halves: int,
    rng: np.random.Generator,
    seed: int,
    device: torch.device,
    together: bool = False,
) -> list[tuple[np.ndarray, FactorLabels]]:
    """Return I(z_j; v_k) [latents, factors] of all rows, then of pairs of halves, each with the labels of its rows.

    The spread over halves replaces a bootstrap, whose repeated rows would be their own nearest neighbours. Information
    of halves may be below 0, so that its errors show.
    """
    draws = [np.arange(len(codes)), *(rows for (rows,) in draw_halves([len(codes)], halves, rng))]

    def estimate(rows: np.ndarray) -> tuple[np.ndarray, FactorLabels]:
        drawn = labels.select(rows)
        lowest = 0.0 if len(rows) == len(codes) else -np.inf
        return estimate_information(codes[rows], drawn, neighbours, seed, device, lowest, together), drawn

    workers = 1 if device.type == "cuda" else count_python_threads()
    with one_thread(), ThreadPoolExecutor(workers) as pool:
        return [result for _, result in zip(track("neighbours", draws), pool.map(estimate, draws), strict=True)]


def standardise_codes(codes: np.ndarray) -> np.ndarray:
    """Return codes with mean 0, standard deviation 1, and a positive first entry that is not 0.

    The sign makes a latent and its mirror image equal before the jitter breaks ties.
    """
    centred = codes - codes.mean(0)
    scale = centred.std(0)
    centred = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    first = np.take_along_axis(centred, (centred != 0).argmax(0)[None], axis=0)[0]
    return centred * np.where(first < 0, -1.0, 1.0)


def _estimate(x: Tensor, labels: np.ndarray, neighbours: int) -> np.ndarray:
    """Return I [latents] of columns x [latents, rows]; each label occurs at least twice."""
    from scipy.special import digamma

    rows = x.shape[1]
    ordered, order = x.sort(dim=1)
    runs = torch.as_tensor(labels, device=x.device)[order].argsort(
        dim=1, stable=True
    )  # each value's rows together, sorted by x
    grouped = ordered.gather(1, runs)
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    places = np.stack([np.repeat(np.cumsum(counts) - counts, counts), np.repeat(counts, counts)])
    first, count = torch.as_tensor(places, device=x.device)
    wanted = (count - 1).clamp_max(neighbours)
    radius = _find_radius(grouped, first, count, neighbours)
    psi = torch.as_tensor(digamma(np.arange(rows + 1).clip(1)), device=x.device)
    nearer = _count_nearer(ordered, grouped, runs, radius)
    information = psi[rows] + (psi[wanted] - psi[count]).mean() - psi[nearer].mean(1)
    return information.cpu().numpy()


def _estimate_together(x: Tensor, labels: np.ndarray, neighbours: int) -> np.ndarray:
    """Return I [1] of all columns x [latents, rows] together; each label occurs at least twice."""
    from scipy.special import digamma

    rows, points, classes = x.shape[1], x.T.contiguous(), torch.as_tensor(labels, device=x.device)
    count = torch.bincount(classes)[classes]
    wanted, nearer, numbers = (count - 1).clamp_max(neighbours), [], torch.arange(rows, device=x.device)
    for some in numbers.split(max(1, MAX_PAIRS_AT_ONCE // rows)):
        distance = torch.cdist(points[some], points, p=torch.inf)
        other = (classes[some, None] != classes) | (some[:, None] == numbers)  # of another class, or the row itself
        nearest = distance.masked_fill(other, torch.inf).topk(int(wanted.max()), largest=False).values
        radius = nearest.gather(1, wanted[some, None] - 1)
        nearer.append((distance < radius).sum(1))
    psi = torch.as_tensor(digamma(np.arange(rows + 1).clip(1)), device=x.device)
    information = psi[rows] + (psi[wanted] - psi[count]).mean() - psi[torch.cat(nearer)].mean()
    return information[None].cpu().numpy()


def _find_radius(grouped: Tensor, first: Tensor, count: Tensor, neighbours: int) -> Tensor:
    """Return the distance to the k-th neighbour [latents, rows] in runs of sorted values, or to the farthest of few.

    A row and its k neighbours are k + 1 adjacent values: the window around the row that reaches least far.
    """
    farthest = torch.maximum(grouped - grouped[:, first], grouped[:, first + count - 1] - grouped)
    windows = grouped.shape[1] - neighbours
    if windows <= 0:
        return farthest
    across = first[:windows] != first[neighbours:]  # such a window belongs to two runs
    low, high = grouped[:, :windows].masked_fill(across, -torch.inf), grouped[:, neighbours:]
    radius = torch.full_like(grouped, torch.inf)
    for before in range(neighbours + 1):
        place = slice(before, before + windows)
        reach = torch.maximum(grouped[:, place] - low, high - grouped[:, place])
        torch.minimum(radius[:, place], reach, out=radius[:, place])
    return torch.where(count > neighbours, radius, farthest)


def _count_nearer(ordered: Tensor, values: Tensor, rank: Tensor, radius: Tensor) -> Tensor:
    """Return how many of all sorted values are nearer to each value, which has the given rank, than its radius."""
    low = torch.searchsorted(ordered, values - radius).minimum(rank)
    high = torch.searchsorted(ordered, values + radius).maximum(rank + 1)
    last = ordered.shape[1] - 1
    for _ in range(8):  # values - radius is rounded, and the neighbour at the radius itself must stay out
        wide = (low < rank) & (values - ordered.gather(1, low) >= radius)
        narrow = (low > 0) & (values - ordered.gather(1, (low - 1).clamp_min(0)) < radius)
        over = (high > rank + 1) & (ordered.gather(1, high - 1) - values >= radius)
        under = (high <= last) & (ordered.gather(1, high.clamp_max(last)) - values < radius)
        if not bool((wide | narrow | over | under).any()):
            break
        low, high = low + wide.long() - narrow.long(), high - over.long() + under.long()
    return high - low
