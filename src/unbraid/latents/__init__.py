"""Latent blocks and the spaces they form."""

from unbraid.latents.blocks import Block, Normal, block
from unbraid.latents.concrete import Bernoulli, Concrete
from unbraid.latents.conditional_prior import ConditionalPrior
from unbraid.latents.correlated_normal import CorrelatedNormal
from unbraid.latents.covariance_prior import CovariancePrior
from unbraid.latents.flow_prior import FlowPrior
from unbraid.latents.learned_priors import LEARNED_PRIOR, Prior, prior
from unbraid.latents.parse import parse_latents, refuse_two_sizes
from unbraid.latents.quantised import Quantised
from unbraid.latents.space import Space
from unbraid.latents.stacked_space import StackedSpace

__all__ = [
    "LEARNED_PRIOR",
    "Bernoulli",
    "Block",
    "Concrete",
    "ConditionalPrior",
    "CorrelatedNormal",
    "CovariancePrior",
    "FlowPrior",
    "Normal",
    "Prior",
    "Quantised",
    "Space",
    "StackedSpace",
    "block",
    "parse_latents",
    "prior",
    "refuse_two_sizes",
]
