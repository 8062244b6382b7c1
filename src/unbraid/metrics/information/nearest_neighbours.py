r"""Mutual information of a continuous latent and a discrete factor by nearest neighbours (ross2014).

    I(z; v) = psi(n) + mean_i [ psi(k_i) - psi(n_{v_i}) - psi(m_i) ],    at least 0

k_i is the number of neighbours asked for (fewer where row i's value has fewer rows), n_v how many rows have value v,
and m_i how many rows, itself included, lie nearer than row i's k_i-th neighbour of the same value. Rows whose value is
theirs alone are left out. In one dimension neighbours are next to each other once sorted, so no tree is needed.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels
from unbraid.progress import progress
from unbraid.threads import one_thread

JITTER = 1e-10
"""Standard deviation of what is added to standardised codes, so that equal ones have an order (kraskov2004)."""


def estimate_information(
    codes: np.ndarray, labels: FactorLabels, neighbours: int, seed: int, device: torch.device | str = "cpu"
) -> np.ndarray:
    """I(z_j; v_k) [latents, factors] in nats; a constant latent has none."""
    jitter = JITTER * np.random.default_rng(seed).standard_normal(len(codes))
    known = np.ptp(codes, axis=0) > 0
    x = torch.as_tensor((standardise_codes(codes[:, known]) + jitter[:, None]).T.copy(), device=device)
    found = np.zeros((codes.shape[1], len(labels.sizes)))
    for k, column in enumerate(labels.values.T):
        rows = np.flatnonzero(np.bincount(column)[column] > 1)
        if known.any() and len(rows):
            own = x if len(rows) == len(column) else x[:, torch.as_tensor(rows, device=device)]
            found[known, k] = _information(own, column[rows], neighbours)
    return found


def estimate_with_halves(
    codes: np.ndarray,
    labels: FactorLabels,
    neighbours: int,
    halves: int,
    rng: np.random.Generator,
    seed: int,
    device: torch.device,
) -> list[tuple[np.ndarray, FactorLabels]]:
    """I(z_j; v_k) [latents, factors] of all rows, then of random halves of them, each with its rows' labels.

    The spread over halves stands for a bootstrap, since neighbours bear no repeated rows.
    """
    drawn = [np.arange(len(codes)), *(rng.permutation(len(codes))[: len(codes) // 2] for _ in range(halves))]

    def of_rows(rows: np.ndarray) -> tuple[np.ndarray, FactorLabels]:
        some = labels._replace(values=labels.values[rows])
        return estimate_information(codes[rows], some, neighbours, seed, device), some

    found, workers = [], 1 if device.type == "cuda" else torch.get_num_threads()
    with progress("neighbours", len(drawn)) as bar, one_thread(), ThreadPoolExecutor(workers) as pool:
        for one in pool.map(of_rows, drawn):
            found.append(one)
            bar.advance()
    return found


def standardise_codes(codes: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1, and the first row that is not at the mean above it.

    So a latent and its mirror image are the same before ties are broken.
    """
    centred = codes - codes.mean(0)
    scale = centred.std(0)
    centred = np.divide(centred, scale, out=np.zeros_like(centred), where=scale > 0)
    first = np.take_along_axis(centred, (centred != 0).argmax(0)[None], axis=0)[0]
    return centred * np.where(first < 0, -1.0, 1.0)


def _information(x: Tensor, labels: np.ndarray, neighbours: int) -> np.ndarray:
    """[latents] of columns x [latents, rows] whose labels all occur at least twice."""
    from scipy.special import digamma

    rows = x.shape[1]
    ordered, order = x.sort(dim=1)
    named = torch.as_tensor(labels, device=x.device)
    runs = named[order].argsort(dim=1, stable=True)  # each value's rows together, sorted by x
    own = ordered.gather(1, runs)
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    places = np.stack([np.repeat(np.cumsum(counts) - counts, counts), np.repeat(counts, counts)])
    first, count = torch.as_tensor(places, device=x.device)
    asked = (count - 1).clamp_max(neighbours)
    radius = _radius(own, first, count, asked, min(neighbours, int(counts.max()) - 1))
    psi = torch.as_tensor(digamma(np.arange(rows + 1).clip(1)), device=x.device)
    found = psi[rows] + (psi[asked] - psi[count]).mean() - psi[_nearer(ordered, own, runs, radius)].mean(1)
    return found.clamp_min(0.0).cpu().numpy()


def _radius(own: Tensor, first: Tensor, count: Tensor, asked: Tensor, most: int) -> Tensor:
    """Distance to the k-th neighbour [latents, rows] in runs of sorted values; k is `asked`, at most `most`.

    These neighbours and the row itself are k + 1 values in a row: of all such windows, the one that reaches least far.
    """
    place = torch.arange(own.shape[1], device=own.device)
    radius = torch.full_like(own, torch.inf)
    for before in range(most + 1):
        low, high = place - before, place - before + asked
        inside = (before <= asked) & (low >= first) & (high < first + count)
        below, above = torch.where(inside, low, place), torch.where(inside, high, place)
        reach = torch.maximum(own - own[:, below], own[:, above] - own)
        radius = torch.minimum(radius, reach.masked_fill_(~inside, torch.inf))
    return radius


def _nearer(ordered: Tensor, own: Tensor, rank: Tensor, radius: Tensor) -> Tensor:
    """How many of all sorted values lie nearer to each own value, of the given rank, than its radius."""
    low = torch.searchsorted(ordered, own - radius).minimum(rank)
    high = torch.searchsorted(ordered, own + radius).maximum(rank + 1)
    last = ordered.shape[1] - 1
    for _ in range(8):  # own - radius is rounded, and the neighbour at the radius itself must stay out
        wide = (low < rank) & (own - ordered.gather(1, low) >= radius)
        narrow = (low > 0) & (own - ordered.gather(1, (low - 1).clamp_min(0)) < radius)
        over = (high > rank + 1) & (ordered.gather(1, high - 1) - own >= radius)
        under = (high <= last) & (ordered.gather(1, high.clamp_max(last)) - own < radius)
        if not bool((wide | narrow | over | under).any()):
            break
        low, high = low + wide.long() - narrow.long(), high - over.long() + under.long()
    return high - low
