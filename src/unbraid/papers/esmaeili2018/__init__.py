"""esmaeili2018: Structured (first: Hierarchical) Disentangled Representations (HFVAE)."""

from unbraid.papers.esmaeili2018 import digits, generalisation, latents, objectives, table2

__all__ = ["digits", "generalisation", "latents", "objectives", "table2"]
