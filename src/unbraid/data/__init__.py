"""Data sets: rendered, converted from public files, or your own."""

from unbraid.data import (  # noqa: F401 (they register themselves)
    cars3d,
    celeba,
    chairs3d,
    dsprites,
    faces3d,
    images,
    mnist,
    mpi3d,
    pendulum,
    shapes3d,
    smallnorb,
    sprites,
)
from unbraid.data.base import data_home, dataset, load
from unbraid.data.factors import Factor, FactorDataset, Pixels, pack_bits
from unbraid.data.files import Description, Recipe, Status, check, describe, fetch
from unbraid.data.images import from_array, from_dataset, from_folder
from unbraid.data.numbers import factor_numbers
from unbraid.data.strokes import digit_width, stroke_thickness

__all__ = [
    "Description",
    "Factor",
    "FactorDataset",
    "Pixels",
    "Recipe",
    "Status",
    "check",
    "data_home",
    "dataset",
    "describe",
    "digit_width",
    "factor_numbers",
    "fetch",
    "from_array",
    "from_dataset",
    "from_folder",
    "load",
    "pack_bits",
    "stroke_thickness",
]
