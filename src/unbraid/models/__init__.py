"""Models; importing this package registers them."""

from unbraid.models.adversarial import Adversarial
from unbraid.models.base import CUSTOM, Model, build, model, seeded
from unbraid.models.coded import Coded
from unbraid.models.conditional_gan import ConditionalGAN, StagedGAN
from unbraid.models.mixture_flow import MixtureFlow
from unbraid.models.multimodal import Multimodal
from unbraid.models.paired import PairedVAE
from unbraid.models.paths import Cross, EverySubset, Experts, Partitioned, Subsampled
from unbraid.models.quantised import QuantisedAutoencoder
from unbraid.models.staged import Stage, Staged
from unbraid.models.staged_flow import StagedFlow
from unbraid.models.student import Student
from unbraid.models.vae import VAE

__all__ = [
    "CUSTOM",
    "VAE",
    "Adversarial",
    "Coded",
    "ConditionalGAN",
    "Cross",
    "EverySubset",
    "Experts",
    "MixtureFlow",
    "Model",
    "Multimodal",
    "PairedVAE",
    "Partitioned",
    "QuantisedAutoencoder",
    "Stage",
    "Staged",
    "StagedFlow",
    "StagedGAN",
    "Student",
    "Subsampled",
    "build",
    "model",
    "seeded",
]
