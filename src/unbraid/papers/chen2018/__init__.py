"""chen2018: Isolating Sources of Disentanglement in Variational Autoencoders (beta-TCVAE and MIG)."""

from unbraid.papers.chen2018 import code_scores, disagreement, latents, methods, over_beta, pictures
from unbraid.papers.chen2018.code_scores import HIGGINS_AT
from unbraid.papers.chen2018.setup import ELBO, MIG, TC

__all__ = ["ELBO", "HIGGINS_AT", "MIG", "TC"]
__all__ += ["code_scores", "disagreement", "latents", "methods", "over_beta", "pictures"]
