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


def drawn(lead, count, size, narrow=None, apart=1.0, seed=0):
    """Parameters and samples of posteriors."""
    generator = torch.Generator().manual_seed(seed)
    mean = apart * torch.randn(*lead, count, size, generator=generator)
    log_variance = torch.randn(mean.shape, generator=generator) - 1
    if narrow is not None:
        log_variance = torch.full_like(mean, narrow)
    z = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=generator)
    return torch.cat([mean, log_variance], dim=-1), z
