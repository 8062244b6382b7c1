"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, conv, esmaeili, gan, mlp, modulated_decoder, split, wide  # noqa: F401
from unbraid.networks.base import Outputs, decoder, encoder
from unbraid.networks.coupling_flow import flow
from unbraid.networks.likelihoods import Likelihood, likelihood, make_likelihood
from unbraid.networks.refiners import refiner

__all__ = ["Likelihood", "Outputs", "decoder", "encoder", "flow", "likelihood", "make_likelihood", "refiner"]
