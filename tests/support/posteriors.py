"""Normal posteriors with random parameters."""

import torch

from unbraid.latents import Normal, Space


def space_of(size, tree=None):
    return Space({"z": Normal(size=size)}, tree)


def random_posterior(n, size, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, size, generator=generator, dtype=dtype)
    log_variance = torch.randn(n, size, generator=generator, dtype=dtype) - 1
    return torch.cat([mean, log_variance], dim=-1)
