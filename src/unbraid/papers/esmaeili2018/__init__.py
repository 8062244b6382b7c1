"""esmaeili2018: Structured (first: Hierarchical) Disentangled Representations (HFVAE)."""
