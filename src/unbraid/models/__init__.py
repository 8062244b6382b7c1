"""Models that several methods share; those of a single method are in `unbraid.methods`."""

from unbraid.models.base import CUSTOM as CUSTOM, Model as Model, build as build, model as model, seeded as seeded
from unbraid.models.multimodal import MultimodalModel as MultimodalModel, as_multimodal as as_multimodal
from unbraid.models.staged import LaterStage as LaterStage, StagedVAE as StagedVAE, as_stage as as_stage
from unbraid.models.vae import VAE as VAE
