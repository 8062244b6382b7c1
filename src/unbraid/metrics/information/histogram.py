"""Mutual information by counting: every latent cut into equal-width bins, all latents and factors at once."""

import numpy as np
from scipy.special import entr

from unbraid.metrics.arrays import Labels

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
        return bin_of(column, low, high, bins)
    place = (column - low) * (1 / width)
    found = place.astype(np.int64)
    place -= found
    np.minimum(found, bins - 1, out=found)  # the greatest value belongs to the last bin
    doubtful = np.flatnonzero((place < AT_EDGE) | (place > 1 - AT_EDGE))
    values = column[doubtful]
    if ((values > low) & (values < high)).any():
        found[doubtful] = bin_of(values, low, high, bins)
    return found


def bin_of(values: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    """Bin of each value by the edges themselves."""
    return np.searchsorted(np.linspace(low, high, bins + 1)[:-1], values, side="right") - 1


class Cells:
    """The cell of each row in the joint histogram of every latent with every factor."""

    def __init__(self, binned: np.ndarray, bins: int, labels: Labels) -> None:
        values = max(labels.sizes)
        self.shape = (binned.shape[1], len(labels.sizes), bins, values)
        self.of_latent = np.ascontiguousarray(binned.T) * values  # [latents, rows]
        first = np.arange(len(labels.sizes))[:, None] * (bins * values)
        self.of_factor = np.ascontiguousarray(labels.values.T) + first  # [factors, rows]

    def information(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """I(z_j; v_k) [latents, factors] and H(v_k) [factors] over all rows or over those given, in nats."""
        joint = self._counts(rows)
        joint = joint / joint[0, 0].sum()
        of_latent, of_factor = entr(joint.sum(3)).sum(2), entr(joint.sum(2)).sum(2)
        return of_latent + of_factor - entr(joint).sum((2, 3)), of_factor[0]

    def _counts(self, rows: np.ndarray | None) -> np.ndarray:
        """Latent by latent: one latent's cells and counts stay in the cache."""
        total = np.zeros((self.shape[0], np.prod(self.shape[1:])), dtype=np.int64)
        count = self.of_factor.shape[1] if rows is None else len(rows)
        for start in range(0, count, CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS) if rows is None else rows[start : start + CHUNK_ROWS]
            of_factor = self.of_factor[:, part]
            for own, of_latent in zip(total, self.of_latent, strict=True):
                own += np.bincount((of_latent[part] + of_factor).ravel(), minlength=len(own))
        return total.reshape(self.shape)
