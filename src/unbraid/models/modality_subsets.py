"""Subsets of a row's modalities as masks [..., M], for bounds that draw the shared latent from several subsets."""

import torch
from torch import Tensor

from unbraid.latents.fusion import subsets

SUBSET_NOISE = "subsets"
"""Name of the uniform noise that chooses random subsets."""


def draw_subsets(among: Tensor, uniform: Tensor) -> Tensor:
    """Draw a non-empty subset of each set [..., M], all equally likely, with a number in (0, 1) [...].

    The number chooses one of 1 to 2^k - 1; its binary digits select among the set's k elements. An empty set gives the
    empty subset.
    """
    count = 2 ** among.sum(-1) - 1
    chosen = torch.minimum(1 + (uniform * count).to(count.dtype), count)
    place = (among.cumsum(-1) - 1).clamp(min=0)
    return among & ((chosen.unsqueeze(-1) >> place) & 1 == 1)


def draw_proper_subsets(present: Tensor, uniform: Tensor) -> Tensor:
    """Draw subsets [rows, count, M] of at least two modalities of a row [rows, M], but not all of them.

    Uniform numbers [rows, count] choose among them. A row with fewer than three modalities gets the empty set.
    """
    table = subsets(present.shape[-1], present.device)  # [S, M]
    size, every = table.sum(-1), present.unsqueeze(-2)
    fit = (every | ~table).all(-1) & (size > 1) & (size < every.sum(-1))  # [rows, S]
    count = fit.sum(-1, keepdim=True)
    chosen = torch.minimum((uniform * count).to(count.dtype), count - 1).unsqueeze(-1)  # [rows, count, 1]
    picked = fit.unsqueeze(-2) & (fit.cumsum(-1).unsqueeze(-2) == chosen + 1)
    return (picked.unsqueeze(-1) & table).any(-2)


def single_modalities(present: Tensor) -> Tensor:
    """Return the single-modality subsets [rows, M, M]; the empty set for a modality that a row [rows, M] lacks."""
    return torch.eye(present.shape[-1], dtype=torch.bool, device=present.device) & present.unsqueeze(-2)
