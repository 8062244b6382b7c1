"""Encoders whose scores are known, and slow, plain versions of the protocols."""

import math

import numpy as np
import torch
from scipy.integrate import quad
from torch import nn

from unbraid.data.factors import Factor, FactorDataset, Pixels
from unbraid.latents import Normal, Space
from unbraid.metrics import Evaluation
from unbraid.models import VAE
from unbraid.networks import make_likelihood

SPRITES = {"shape": 3, "scale": 6, "orientation": 40, "posX": 32, "posY": 32}


def full_grid(sizes):
    """All combinations of factor values [n, factors], last factor fastest."""
    return np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1).reshape(-1, len(sizes))


def aligned_encoder(grid, std):
    """Row 2 of tests/oracles.md: standardised factor indices with posterior std `std`, and as many unused latents."""
    informative = (grid - grid.mean(0)) / grid.std(0)
    means = np.concatenate([informative, np.zeros_like(informative)], axis=1)
    stds = np.concatenate([np.full(informative.shape, std), np.ones(informative.shape)], axis=1)
    return means, stds


def slow_gap(information, entropies):
    """MIG from I[j][k] and H[k], by the definition."""
    gaps = []
    for k, entropy in enumerate(entropies):
        column = sorted((row[k] for row in information), reverse=True)
        gaps.append((column[0] - column[1]) / entropy)
    return sum(gaps) / len(gaps)


def slow_entropy(labels):
    counts = [list(labels).count(value) for value in set(labels)]
    return -sum(c / len(labels) * math.log(c / len(labels)) for c in counts)


def slow_exact_information(mean, std, labels):
    """I(z; v) of one latent by adaptive quadrature of H(z) - sum_a p(a) H(z|a)."""

    def entropy(rows):
        def minus_q_log_q(x):
            q = np.mean(np.exp(-0.5 * ((x - mean[rows]) / std[rows]) ** 2) / (std[rows] * math.sqrt(2 * math.pi)))
            return -q * math.log(q) if q > 0 else 0.0

        low, high = (mean - 9 * std).min(), (mean + 9 * std).max()
        return quad(minus_q_log_q, low, high, limit=2000, epsabs=1e-10, epsrel=1e-10, points=sorted(set(mean)))[0]

    whole = entropy(np.ones(len(mean), dtype=bool))
    return whole - sum((labels == a).mean() * entropy(labels == a) for a in set(labels))


class Fixed(nn.Module):
    """An encoder that looks its answer up: pixel 0 of a row is the row's number over the number of rows."""

    def __init__(self, answers):
        super().__init__()
        self.register_buffer("answers", answers)

    def forward(self, x):
        return self.answers[(x.flatten(1)[:, 0] * len(self.answers)).round().long()]


def fixed_evaluation(means, stds, factors, names=None, decoder=None, pixels=2, tree=None, **settings):
    """An `Evaluation` whose posteriors are given."""
    means, stds = torch.as_tensor(means).float(), torch.as_tensor(stds).float()
    rows, latents = means.shape
    x = torch.arange(rows).float()[:, None].repeat(1, pixels) / rows
    table = torch.as_tensor(factors).long()
    names = names or [f"v{k}" for k in range(table.shape[1])]
    factors = tuple(Factor(n, int(c.max()) + 1) for n, c in zip(names, table.T, strict=True))
    data = FactorDataset("made", Pixels(x, (pixels,)), factors, table)
    space = Space({"z": Normal(size=latents)}, tree)
    encoder = Fixed(torch.cat([means, 2 * stds.log()], dim=1))
    model = VAE(space, (pixels,), encoder, decoder or nn.Linear(latents, pixels), make_likelihood("gaussian", {}))
    return Evaluation(model, data, **settings)


def mixed_data(rows=400, latents=4, seed=0):
    """Codes that know two factors to different degrees; neither square nor symmetric."""
    rng = np.random.default_rng(seed)
    factors = np.stack([rng.integers(0, 3, rows), rng.integers(0, 5, rows)], axis=1)
    codes = rng.standard_normal((rows, latents))
    codes[:, 1] += 2 * factors[:, 0]
    codes[:, 2] += factors[:, 1]
    codes[:, 0] += 0.5 * factors[:, 1]
    return codes, factors
