"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, conv, esmaeili, gan, mlp, split
from unbraid.networks.base import Outputs, decoder, encoder
from unbraid.networks.likelihoods import Likelihood, likelihood, make_likelihood

__all__ = [
    "Likelihood",
    "Outputs",
    "broadcast",
    "conv",
    "decoder",
    "encoder",
    "esmaeili",
    "gan",
    "likelihood",
    "make_likelihood",
    "mlp",
    "split",
]
