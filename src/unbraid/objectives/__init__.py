"""Shared parts of objectives; the methods themselves are in `unbraid.methods`."""

from unbraid.objectives.base import Context as Context, Objective as Objective, bind as bind, objective as objective
from unbraid.objectives.decomposition import (
    closed_form_kl as closed_form_kl,
    divergences as divergences,
    elbo_terms as elbo_terms,
    leaf_information as leaf_information,
    reconstruction as reconstruction,
)
