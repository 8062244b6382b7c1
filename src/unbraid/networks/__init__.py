"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, coded, conv, esmaeili, gan, mlp, refiners, residual_encoder, split, wide
from unbraid.networks.base import Outputs, decoder, encoder
from unbraid.networks.coupling_flow import flow
from unbraid.networks.likelihoods import Likelihood, likelihood, make_likelihood
from unbraid.networks.refiners import refiner

__all__ = [
    "Likelihood",
    "Outputs",
    "broadcast",
    "coded",
    "conv",
    "decoder",
    "encoder",
    "esmaeili",
    "flow",
    "gan",
    "likelihood",
    "make_likelihood",
    "mlp",
    "refiner",
    "refiners",
    "residual_encoder",
    "split",
    "wide",
]
