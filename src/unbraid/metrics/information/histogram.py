"""Mutual information by counting: every latent cut into equal-width bins, all latents and factors at once."""

import numpy as np
from scipy.special import entr

from unbraid.metrics.arrays import Labels

_CHUNK_CELLS = 2**24


def discretise(codes: np.ndarray, bins: int) -> np.ndarray:
    """Bin of each code [rows, latents], from 0: equal widths between the column's least and greatest value.

    Bins include their lower edge, the last one also its upper edge, as `numpy.histogram` has it; a constant column
    falls into one bin.
    """
    edges = np.linspace(codes.min(0), codes.max(0), bins + 1)[:-1]
    columns = zip(edges.T, codes.T, strict=True)
    return np.stack([np.searchsorted(edge, column, side="right") - 1 for edge, column in columns], axis=1)


class Cells:
    """The cell of each row in the joint histogram of every latent with every factor."""

    def __init__(self, binned: np.ndarray, bins: int, labels: Labels) -> None:
        latents, factors = binned.shape[1], len(labels.sizes)
        self.shape = (latents, factors, bins, max(labels.sizes))
        pair = np.arange(latents * factors).reshape(latents, factors)
        cell = pair * bins + binned[:, :, None]
        self.cell = (cell * self.shape[-1] + labels.values[:, None, :]).reshape(len(binned), -1)  # [rows, pairs]

    def information(self, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """I(z_j; v_k) [latents, factors] and H(v_k) [factors] over all rows or over those given, in nats."""
        joint = self._counts(np.arange(len(self.cell)) if rows is None else rows)
        joint = joint / joint[0, 0].sum()
        of_latent, of_factor = entr(joint.sum(3)).sum(2), entr(joint.sum(2)).sum(2)
        return of_latent + of_factor - entr(joint).sum((2, 3)), of_factor[0]

    def _counts(self, rows: np.ndarray) -> np.ndarray:
        total = np.zeros(np.prod(self.shape), dtype=np.int64)
        for part in np.array_split(rows, 1 + rows.size * self.cell.shape[1] // _CHUNK_CELLS):
            total += np.bincount(self.cell[part].ravel(), minlength=len(total))
        return total.reshape(self.shape)
