"""Encoders, decoders and likelihoods; importing this package registers them."""

from unbraid.networks import broadcast, conv, esmaeili, gan, mlp, modulated_decoder, split, wide  # noqa: F401
from unbraid.networks.base import Outputs as Outputs, decoder as decoder, encoder as encoder
from unbraid.networks.coupling_flow import flow as flow
from unbraid.networks.likelihoods import (
    Likelihood as Likelihood,
    likelihood as likelihood,
    make_likelihood as make_likelihood,
)
from unbraid.networks.refiners import refiner as refiner
