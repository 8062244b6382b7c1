"""Methods, one page each: formula, citation, settings, objective and, where it needs one of its own, model.

Importing this package registers all of them.
"""

from unbraid.methods import (
    anchored_corex,
    annealed_vae,
    dip_vae,
    dmvae,
    factor_vae,
    info_gan,
    info_vae,
    jacobian_student,
    label_decoder,
    mmvae,
    mopoe,
    ms_code,
    ms_coupling,
    ms_flow,
    ms_gan,
    ms_labels,
    ms_vae,
    mvae,
    paired_vae,
    partial_beta_vae,
    partitioned_mvae,
    presets,
    qlae,
    s2_beta_vae,
)
from unbraid.methods.presets import preset
from unbraid.objectives import objective

__all__ = [
    "anchored_corex",
    "annealed_vae",
    "dip_vae",
    "dmvae",
    "factor_vae",
    "info_gan",
    "info_vae",
    "jacobian_student",
    "label_decoder",
    "mmvae",
    "mopoe",
    "ms_code",
    "ms_coupling",
    "ms_flow",
    "ms_gan",
    "ms_labels",
    "ms_vae",
    "mvae",
    "objective",
    "paired_vae",
    "partial_beta_vae",
    "partitioned_mvae",
    "preset",
    "presets",
    "qlae",
    "s2_beta_vae",
]
