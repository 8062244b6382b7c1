"""Objectives; importing this package registers them."""

from unbraid.objectives import capacity, correlation, mmd, moments, presets, weighted
from unbraid.objectives.base import Context, Objective, bind, objective
from unbraid.objectives.decomposition import closed_form_kl, divergences, reconstruction
from unbraid.objectives.presets import preset

__all__ = [
    "Context",
    "Objective",
    "bind",
    "capacity",
    "closed_form_kl",
    "correlation",
    "divergences",
    "mmd",
    "moments",
    "objective",
    "preset",
    "presets",
    "reconstruction",
    "weighted",
]
