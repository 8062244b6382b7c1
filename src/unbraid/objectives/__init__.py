"""Shared parts of objectives; the methods themselves are in `unbraid.methods`."""

from unbraid.objectives.base import Context, Objective, bind, objective
from unbraid.objectives.decomposition import closed_form_kl, divergences, elbo_terms, leaf_information, reconstruction

__all__ = [
    "Context",
    "Objective",
    "bind",
    "closed_form_kl",
    "divergences",
    "elbo_terms",
    "leaf_information",
    "objective",
    "reconstruction",
]
