"""Gaussian codes whose total correlation is known (tests/oracles.md, row 5)."""

import math

import torch


def correlated(rows, rho, dimensions=10, seed=0):
    """Pairs of columns with correlation rho: TC = -(D/4) ln(1 - rho^2)."""
    noise = torch.randn(rows, dimensions, generator=torch.Generator().manual_seed(seed))
    codes = noise.clone()
    codes[:, 1::2] = rho * noise[:, ::2] + math.sqrt(1 - rho**2) * noise[:, 1::2]
    return codes


def truth(rho, dimensions=10):
    return -dimensions / 4 * math.log(1 - rho**2)
