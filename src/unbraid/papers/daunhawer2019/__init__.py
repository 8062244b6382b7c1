"""daunhawer2019: Improving Multimodal Generative Models with Disentangled Latent Partitions."""

from unbraid.papers.daunhawer2019 import (
    diversity as diversity,
    many as many,
    over_beta as over_beta,
    pictures as pictures,
)
