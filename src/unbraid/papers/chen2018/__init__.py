"""chen2018: Isolating Sources of Disentanglement in Variational Autoencoders (beta-TCVAE and MIG)."""

from unbraid.papers.chen2018 import (
    batches as batches,
    biased as biased,
    code_scores as code_scores,
    datasets as datasets,
    disagreement as disagreement,
    latents as latents,
    methods as methods,
    over_beta as over_beta,
    pictures as pictures,
)
from unbraid.papers.chen2018.code_scores import HIGGINS_AT as HIGGINS_AT
from unbraid.papers.chen2018.setup import ELBO as ELBO, MIG as MIG, TC as TC
