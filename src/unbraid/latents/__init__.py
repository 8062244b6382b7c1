"""Latent blocks and the spaces they form."""

from unbraid.latents.blocks import Block as Block, Normal as Normal, block as block
from unbraid.latents.concrete import Bernoulli as Bernoulli, Concrete as Concrete
from unbraid.latents.conditional_prior import ConditionalPrior as ConditionalPrior
from unbraid.latents.correlated_normal import CorrelatedNormal as CorrelatedNormal
from unbraid.latents.covariance_prior import CovariancePrior as CovariancePrior
from unbraid.latents.flow_prior import FlowPrior as FlowPrior
from unbraid.latents.learned_priors import LEARNED_PRIOR as LEARNED_PRIOR, Prior as Prior, prior as prior
from unbraid.latents.parse import parse_latents as parse_latents, refuse_two_sizes as refuse_two_sizes
from unbraid.latents.quantised import Quantised as Quantised
from unbraid.latents.space import Space as Space, StackedSpace as StackedSpace
