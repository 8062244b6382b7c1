"""Models; importing this package registers them."""

from unbraid.models.adversarial import Adversarial
from unbraid.models.base import CUSTOM, Model, build, model, seeded
from unbraid.models.mixture_flow import MixtureFlow
from unbraid.models.paired import PairedVAE
from unbraid.models.quantised import QuantisedAutoencoder
from unbraid.models.staged import Staged
from unbraid.models.vae import VAE

__all__ = [
    "CUSTOM",
    "VAE",
    "Adversarial",
    "MixtureFlow",
    "Model",
    "PairedVAE",
    "QuantisedAutoencoder",
    "Staged",
    "build",
    "model",
    "seeded",
]
