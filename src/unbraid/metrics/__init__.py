"""Scores of models; importing this package registers every metric.

The functions take codes and factors of any model as arrays. `evaluate` runs registered metrics on an `Evaluation`.
"""

from unbraid.metrics.base import (
    Evaluation as Evaluation,
    Score as Score,
    encode_together as encode_together,
    evaluate as evaluate,
    expand as expand,
    metric as metric,
)
from unbraid.metrics.comparison import (
    Comparison as Comparison,
    compare_evaluations as compare_evaluations,
    compare_seeds as compare_seeds,
)
from unbraid.metrics.discrete import class_purity as class_purity
from unbraid.metrics.discrete.cluster_accuracy import clusters as clusters
from unbraid.metrics.generative import (
    flow_density as flow_density,
    log_likelihood as log_likelihood,
    pixel_error as pixel_error,
    strokes as strokes,
)
from unbraid.metrics.generative.features.base import image_features as image_features
from unbraid.metrics.generative.frechet import frechet as frechet
from unbraid.metrics.generative.kernel_distance import kid as kid
from unbraid.metrics.generative.precision_recall import precision_recall as precision_recall
from unbraid.metrics.information.corrected import (
    infomec_corrected as infomec_corrected,
    mig_corrected as mig_corrected,
    modularity_corrected as modularity_corrected,
)
from unbraid.metrics.information.infomec import infomec as infomec
from unbraid.metrics.information.mig import mig as mig, mig_exact as mig_exact, restricted as restricted
from unbraid.metrics.information.mig_monte_carlo import mig_monte_carlo as mig_monte_carlo
from unbraid.metrics.information.modularity_explicitness import explicitness as explicitness, modularity as modularity
from unbraid.metrics.intervention import factor_preservation as factor_preservation
from unbraid.metrics.intervention.betavae import betavae as betavae
from unbraid.metrics.intervention.factorvae import factorvae as factorvae
from unbraid.metrics.intervention.irs import irs as irs
from unbraid.metrics.multimodal import probe as probe
from unbraid.metrics.predictive.attributes import attributes as attributes
from unbraid.metrics.predictive.dci import dci as dci
from unbraid.metrics.predictive.downstream import downstream as downstream
from unbraid.metrics.predictive.sap import sap as sap
from unbraid.metrics.stages import mig_blocks as mig_blocks
from unbraid.metrics.stages.conditioning import conditioning as conditioning
from unbraid.metrics.stages.unlabelled_factors import unseen as unseen
from unbraid.metrics.unsupervised import elbo as elbo
from unbraid.metrics.unsupervised.active_units import active_units as active_units
from unbraid.metrics.unsupervised.code_dependence import (
    latent_information as latent_information,
    total_correlation as total_correlation,
)
from unbraid.metrics.unsupervised.udr import udr as udr
