"""daunhawer2019: Improving Multimodal Generative Models with Disentangled Latent Partitions."""
