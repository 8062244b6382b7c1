"""Histograms of many draws of the same rows as one tensor program, for a GPU.

A GPU that bins one draw after the other waits for the processor. Here the draws are one more axis. Bins and counts are
those of `histogram.py`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels

MAX_CELLS_AT_ONCE = 2**25
"""Cells, one for each row, latent and factor of a draw, that are counted at once."""


def measure_draws(
    codes: np.ndarray, labels: FactorLabels, bins: int, draws: Sequence[np.ndarray], device: torch.device | str
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Measure draws of equally many rows, each in equal-width bins of its own.

    Return each draw's ranges of the latents, and its I [latents, factors] and H [factors] in nats.
    """
    if not draws:
        return [], []
    values, factors = torch.as_tensor(codes, device=device), torch.as_tensor(labels.values, device=device)
    cells = len(draws[0]) * codes.shape[1] * len(labels.sizes)
    ranges, informations, entropies = [], [], []
    for some in torch.as_tensor(np.stack(draws), device=device).split(max(1, MAX_CELLS_AT_ONCE // cells)):
        chosen = values[some].mT.contiguous()  # [draws, latents, rows]
        low, high = chosen.amin(-1, keepdim=True), chosen.amax(-1, keepdim=True)
        edges = torch.arange(bins, device=device) * ((high - low) / bins) + low  # as numpy.linspace rounds them
        joint = _count(torch.searchsorted(edges, chosen, right=True) - 1, factors[some].mT, bins, max(labels.sizes))
        of_latent, of_factor = plogp(joint.sum(-1)).sum(-1), plogp(joint.sum(-2)).sum(-1)
        informations.append(of_latent + of_factor - plogp(joint).sum((-2, -1)))
        entropies.append(of_factor[:, 0])
        ranges.append((high - low)[..., 0])
    found = [torch.cat(parts).cpu().numpy() for parts in (ranges, informations, entropies)]
    return list(found[0]), list(zip(found[1], found[2], strict=True))


def _count(binned: Tensor, factors: Tensor, bins: int, values: int) -> Tensor:
    """Return the joint shares [draws, latents, factors, bins, values] of bins [draws, latents, rows] and factors."""
    shape = (*binned.shape[:2], factors.shape[1], bins, values)
    tables = torch.arange(shape[0] * shape[1] * shape[2], device=binned.device).view(*shape[:3], 1)
    cells = (tables * bins + binned[:, :, None]) * values + factors[:, None]
    total = torch.zeros(tables.numel() * bins * values, dtype=torch.float64, device=binned.device)
    total.scatter_add_(0, cells.flatten(), total.new_ones(1).expand(cells.numel()))
    return total.view(shape) / binned.shape[-1]


def plogp(density: Tensor) -> Tensor:
    """Return -p log p, or 0 if p <= 0; the first use of torch's own function on CUDA compiles it for seconds."""
    return -density.clamp_min(0) * density.clamp_min(torch.finfo(density.dtype).tiny).log()
