"""Latent blocks and the spaces they form."""

from unbraid.latents.blocks import Block, Normal, block
from unbraid.latents.concrete import Bernoulli, Concrete
from unbraid.latents.space import Space
from unbraid.latents.typed import latents_of

__all__ = ["Bernoulli", "Block", "Concrete", "Normal", "Space", "block", "latents_of"]
