"""Models that several methods share; those of a single method are in `unbraid.methods`."""

from unbraid.models.base import CUSTOM, Model, build, model, seeded
from unbraid.models.multimodal import MultimodalModel, as_multimodal
from unbraid.models.staged import LaterStage, StagedVAE, as_stage
from unbraid.models.vae import VAE

__all__ = [
    "CUSTOM",
    "VAE",
    "LaterStage",
    "Model",
    "MultimodalModel",
    "StagedVAE",
    "as_multimodal",
    "as_stage",
    "build",
    "model",
    "seeded",
]
