"""daunhawer2019: Improving Multimodal Generative Models with Disentangled Latent Partitions."""

from unbraid.papers.daunhawer2019 import diversity, many, over_beta, pictures

__all__ = ["diversity", "many", "over_beta", "pictures"]
