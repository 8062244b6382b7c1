"""Mutual information by histograms: every latent in equal-width bins, all latents and factors at once."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels

MAX_ROWS_PER_CHUNK = 2**16


def discretise(codes: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each code [rows, latents], from 0; bins have equal widths between a column's extremes.

    Bins include their lower edge, and the last one its upper edge, as in `numpy.histogram`. A constant column falls
    into one bin.
    """
    columns = np.ascontiguousarray(codes.T)
    return np.stack([find_bins(column, column.min(), column.max(), bins) for column in columns]).T


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
        from scipy.special import entr

        joint = self._counts(rows)
        joint = joint / joint[0, 0].sum()
        of_latent, of_factor = entr(joint.sum(3)).sum(2), entr(joint.sum(2)).sum(2)
        return of_latent + of_factor - entr(joint).sum((2, 3)), of_factor[0]

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


def plogp(density: Tensor) -> Tensor:
    """Return -p log p, or 0 if p <= 0; the first use of torch's own function on CUDA compiles it for seconds."""
    return -density.clamp_min(0) * density.clamp_min(torch.finfo(density.dtype).tiny).log()
