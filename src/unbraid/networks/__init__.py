"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, conv, esmaeili, gan, mlp, modulated_decoder, refiners, split, wide
from unbraid.networks.base import Outputs, decoder, encoder
from unbraid.networks.coupling_flow import flow
from unbraid.networks.likelihoods import Likelihood, likelihood, make_likelihood
from unbraid.networks.refiners import refiner

__all__ = [
    "Likelihood",
    "Outputs",
    "broadcast",
    "conv",
    "decoder",
    "encoder",
    "esmaeili",
    "flow",
    "gan",
    "likelihood",
    "make_likelihood",
    "mlp",
    "modulated_decoder",
    "refiner",
    "refiners",
    "split",
    "wide",
]
