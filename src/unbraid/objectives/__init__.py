"""Objectives; importing this package registers them."""

from unbraid.objectives import (
    adversarial,
    capacity,
    correlation,
    few_labels,
    label_decoder,
    mixture_flow,
    mmd,
    moments,
    presets,
    quantised,
    staged,
    weak,
    weighted,
)
from unbraid.objectives.base import Context, Objective, bind, objective
from unbraid.objectives.decomposition import closed_form_kl, divergences, reconstruction
from unbraid.objectives.presets import preset

__all__ = [
    "Context",
    "Objective",
    "adversarial",
    "bind",
    "capacity",
    "closed_form_kl",
    "correlation",
    "divergences",
    "few_labels",
    "label_decoder",
    "mixture_flow",
    "mmd",
    "moments",
    "objective",
    "preset",
    "presets",
    "quantised",
    "reconstruction",
    "staged",
    "weak",
    "weighted",
]
