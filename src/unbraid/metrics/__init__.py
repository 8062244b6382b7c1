"""Scores; importing this package registers them.

The functions take codes and factors of any model as arrays; `evaluate` measures registered metrics on an `Evaluation`.
"""

from unbraid.metrics.base import Evaluation, Score, encode_together, evaluate, expand, metric
from unbraid.metrics.discrete import generated
from unbraid.metrics.discrete.clusters import clusters
from unbraid.metrics.generative import density, evidence, pixel_error, strokes
from unbraid.metrics.generative.features import image_features
from unbraid.metrics.generative.frechet import frechet
from unbraid.metrics.generative.kernel_distance import kid
from unbraid.metrics.generative.manifold import precision_recall
from unbraid.metrics.information import parts
from unbraid.metrics.information.conditioning import conditioning
from unbraid.metrics.information.infomec import infomec
from unbraid.metrics.information.mig import mig, mig_exact, restricted
from unbraid.metrics.information.monte_carlo import mig_monte_carlo
from unbraid.metrics.information.ridgeway import explicitness, modularity
from unbraid.metrics.intervention import kept
from unbraid.metrics.intervention.betavae import betavae
from unbraid.metrics.intervention.factorvae import factorvae
from unbraid.metrics.intervention.irs import irs
from unbraid.metrics.multimodal import probe
from unbraid.metrics.predictive.attributes import attributes
from unbraid.metrics.predictive.dci import dci
from unbraid.metrics.predictive.downstream import downstream
from unbraid.metrics.predictive.sap import sap
from unbraid.metrics.predictive.unseen import unseen
from unbraid.metrics.unsupervised import bound
from unbraid.metrics.unsupervised.dependence import latent_information, total_correlation
from unbraid.metrics.unsupervised.udr import udr
from unbraid.metrics.unsupervised.units import active_units

__all__ = [
    "Evaluation",
    "Score",
    "active_units",
    "attributes",
    "betavae",
    "bound",
    "clusters",
    "conditioning",
    "dci",
    "density",
    "downstream",
    "encode_together",
    "evaluate",
    "evidence",
    "expand",
    "explicitness",
    "factorvae",
    "frechet",
    "generated",
    "image_features",
    "infomec",
    "irs",
    "kept",
    "kid",
    "latent_information",
    "metric",
    "mig",
    "mig_exact",
    "mig_monte_carlo",
    "modularity",
    "parts",
    "pixel_error",
    "precision_recall",
    "probe",
    "restricted",
    "sap",
    "strokes",
    "total_correlation",
    "udr",
    "unseen",
]
