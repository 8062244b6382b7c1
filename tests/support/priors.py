"""Spaces with a learned prior, and random numbers for their parameters."""

import numpy as np
import torch

from unbraid.latents import LEARNED_PRIOR, Space, prior


def random(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_learned(space, lead=(), seed=0, scale=1.0):
    """The standard prior and random parameters of the learned one."""
    size = sum(np.prod(shape, dtype=int) for shape in space.learned.shapes.values())
    return {**space.prior(random(1)), LEARNED_PRIOR: random(*lead, size, seed=seed, scale=scale)}


def made_space(kind, blocks, tree=None, **settings):
    return Space(blocks, tree, prior[kind].make(blocks, **settings))
