"""Mutual information by counting: every latent cut into equal-width bins, all latents and factors at once."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels

AT_EDGE = 1e-6
"""Distance from an edge, in widths of a bin, below which rounding may decide."""

CHUNK_ROWS = 2**16


def discretise(codes: np.ndarray, bins: int) -> np.ndarray:
    """Bin of each code [rows, latents], from 0: equal widths between the column's least and greatest value.

    Bins include their lower edge, the last one also its upper edge, as `numpy.histogram` has it; a constant column
    falls into one bin.
    """
    found = np.empty((codes.shape[1], len(codes)), dtype=np.int64)
    for column, own in zip(codes.T, found, strict=True):  # one at a time stays in the cache
        own[:] = _discretised(np.ascontiguousarray(column), bins)
    return found.T


def _discretised(column: np.ndarray, bins: int) -> np.ndarray:
    """By a product, and by the edges themselves where rounding may decide."""
    low, high = column.min(), column.max()
    width = (high - low) / bins
    coarse = max(abs(low), abs(high)) * np.finfo(np.float64).eps >= width * AT_EDGE / 10  # few distinct floats, or one
    if coarse or width < np.finfo(np.float64).tiny:
        return find_bins(column, low, high, bins)
    place = (column - low) * (1 / width)
    found = place.astype(np.int64)
    place -= found
    np.minimum(found, bins - 1, out=found)  # the greatest value belongs to the last bin
    doubtful = np.flatnonzero((place < AT_EDGE) | (place > 1 - AT_EDGE))
    values = column[doubtful]
    if ((values > low) & (values < high)).any():
        found[doubtful] = find_bins(values, low, high, bins)
    return found


def find_bins(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    """Bin of each value by the edges themselves."""
    return np.searchsorted(np.linspace(low, high, bins + 1)[:-1], values, side="right") - 1


class JointHistograms:
    """The cell of each row in the joint histogram of every latent with every factor; counted on the CPU or on CUDA."""

    def __init__(self, binned: np.ndarray, bins: int, labels: FactorLabels, device: torch.device | str = "cpu") -> None:
        values = max(labels.sizes)
        self.shape = (binned.shape[1], len(labels.sizes), bins, values)
        first = np.arange(len(labels.sizes))[:, None] * (bins * values)
        self.of_latent = np.ascontiguousarray(binned.T) * values  # [latents, rows]
        self.of_factor = np.ascontiguousarray(labels.values.T) + first  # [factors, rows]
        self.device = torch.device(device)

    def information(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """I(z_j; v_k) [latents, factors] and H(v_k) [factors] over all rows or over those given, in nats."""
        from scipy.special import entr

        joint = self._counts(rows)
        joint = joint / joint[0, 0].sum()
        of_latent, of_factor = entr(joint.sum(3)).sum(2), entr(joint.sum(2)).sum(2)
        return of_latent + of_factor - entr(joint).sum((2, 3)), of_factor[0]

    def informations(self, draws: Sequence[np.ndarray | None]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same of several draws of rows."""
        if self.device.type != "cuda":
            return [self.information(rows) for rows in draws]
        of_latent, of_factor = (
            torch.as_tensor(cells, device=self.device) for cells in (self.of_latent, self.of_factor)
        )
        start = torch.arange(len(of_latent), device=self.device) * math.prod(self.shape[1:])
        cells = (of_latent[:, None] + of_factor + start[:, None, None]).flatten(0, 1)  # [latents x factors, rows]
        found = []
        for rows in draws:
            chosen = cells if rows is None else cells[:, torch.as_tensor(rows, device=self.device)]
            joint = torch.zeros(math.prod(self.shape), dtype=torch.float64, device=self.device)
            joint.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=torch.float64))
            joint = joint.view(self.shape) / chosen.shape[1]
            latent, factor = plogp(joint.sum(3)).sum(2), plogp(joint.sum(2)).sum(2)
            found.append(torch.cat([latent + factor - plogp(joint).sum((2, 3)), factor[:1]]))
        return [(one[:-1], one[-1]) for one in torch.stack(found).cpu().numpy()] if found else []

    def _counts(self, rows: np.ndarray | None) -> np.ndarray:
        """Latent by latent: one latent's cells and counts stay in the cache."""
        total = np.zeros((self.shape[0], math.prod(self.shape[1:])), dtype=np.int64)
        count = self.of_factor.shape[1] if rows is None else len(rows)
        for start in range(0, count, CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS) if rows is None else rows[start : start + CHUNK_ROWS]
            of_factor = self.of_factor[:, part]
            for own, of_latent in zip(total, self.of_latent, strict=True):
                own += np.bincount((of_latent[part] + of_factor).ravel(), minlength=len(own))
        return total.reshape(self.shape)


def plogp(density: Tensor) -> Tensor:
    """-p log p, 0 where p is not above 0; CUDA would compile torch's own at its first use, which takes seconds."""
    return -density.clamp_min(0) * density.clamp_min(torch.finfo(density.dtype).tiny).log()
