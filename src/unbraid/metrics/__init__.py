"""Scores of models; importing this package registers every metric.

The functions take codes and factors of any model as arrays. `evaluate` runs registered metrics on an `Evaluation`.
"""

from unbraid.metrics.base import Evaluation, Score, encode_together, evaluate, expand, metric
from unbraid.metrics.discrete import class_purity
from unbraid.metrics.discrete.cluster_accuracy import clusters
from unbraid.metrics.generative import flow_density, log_likelihood, pixel_error, strokes
from unbraid.metrics.generative.features.base import image_features
from unbraid.metrics.generative.frechet import frechet
from unbraid.metrics.generative.kernel_distance import kid
from unbraid.metrics.generative.precision_recall import precision_recall
from unbraid.metrics.information.infomec import infomec
from unbraid.metrics.information.mig import mig, mig_exact, restricted
from unbraid.metrics.information.mig_monte_carlo import mig_monte_carlo
from unbraid.metrics.information.modularity_explicitness import explicitness, modularity
from unbraid.metrics.intervention import factor_preservation
from unbraid.metrics.intervention.betavae import betavae
from unbraid.metrics.intervention.factorvae import factorvae
from unbraid.metrics.intervention.irs import irs
from unbraid.metrics.multimodal import probe
from unbraid.metrics.predictive.attributes import attributes
from unbraid.metrics.predictive.dci import dci
from unbraid.metrics.predictive.downstream import downstream
from unbraid.metrics.predictive.sap import sap
from unbraid.metrics.stages import mig_blocks
from unbraid.metrics.stages.conditioning import conditioning
from unbraid.metrics.stages.unlabelled_factors import unseen
from unbraid.metrics.unsupervised import elbo
from unbraid.metrics.unsupervised.active_units import active_units
from unbraid.metrics.unsupervised.code_dependence import latent_information, total_correlation
from unbraid.metrics.unsupervised.udr import udr

__all__ = [
    "Evaluation",
    "Score",
    "active_units",
    "attributes",
    "betavae",
    "class_purity",
    "clusters",
    "conditioning",
    "dci",
    "downstream",
    "elbo",
    "encode_together",
    "evaluate",
    "expand",
    "explicitness",
    "factor_preservation",
    "factorvae",
    "flow_density",
    "frechet",
    "image_features",
    "infomec",
    "irs",
    "kid",
    "latent_information",
    "log_likelihood",
    "metric",
    "mig",
    "mig_blocks",
    "mig_exact",
    "mig_monte_carlo",
    "modularity",
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
