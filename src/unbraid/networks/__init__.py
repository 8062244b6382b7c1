"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, coded, conv, esmaeili, gan, mlp, modulated, residual, split, wide
from unbraid.networks.base import Outputs, decoder, encoder
from unbraid.networks.flows import flow
from unbraid.networks.likelihoods import Likelihood, likelihood, make_likelihood
from unbraid.networks.modulated import refiner

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
    "modulated",
    "refiner",
    "residual",
    "split",
    "wide",
]
