"""Models; importing this package registers them."""

from unbraid.models.base import CUSTOM, Model, build, model, seeded
from unbraid.models.vae import VAE

__all__ = ["CUSTOM", "VAE", "Model", "build", "model", "seeded"]
