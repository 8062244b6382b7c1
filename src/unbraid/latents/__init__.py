"""Latent blocks and the spaces they form."""

from unbraid.latents.blocks import Block, Normal, block
from unbraid.latents.concrete import Bernoulli, Concrete
from unbraid.latents.conditional import Conditional
from unbraid.latents.correlated import CorrelatedNormal
from unbraid.latents.covariance import Covariance
from unbraid.latents.flow import Flow
from unbraid.latents.priors import LEARNED, Prior, prior
from unbraid.latents.quantised import Quantised
from unbraid.latents.space import Space
from unbraid.latents.stages import Stages
from unbraid.latents.typed import latents_of, refuse_both

__all__ = [
    "LEARNED",
    "Bernoulli",
    "Block",
    "Concrete",
    "Conditional",
    "CorrelatedNormal",
    "Covariance",
    "Flow",
    "Normal",
    "Prior",
    "Quantised",
    "Space",
    "Stages",
    "block",
    "latents_of",
    "prior",
    "refuse_both",
]
