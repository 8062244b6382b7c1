"""esmaeili2018: Structured (first: Hierarchical) Disentangled Representations (HFVAE)."""

from unbraid.papers.esmaeili2018 import (
    digits as digits,
    generalisation as generalisation,
    latents as latents,
    objectives as objectives,
    table2 as table2,
    thickness as thickness,
)
