"""Latent blocks and the spaces they form."""

from unbraid.latents.blocks import Block, Normal, block
from unbraid.latents.space import Space

__all__ = ["Block", "Normal", "Space", "block"]
