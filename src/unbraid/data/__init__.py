"""Data sets: rendered, converted from public files, or your own."""

from unbraid.data import (  # noqa: F401 (they register themselves)
    cars3d,
    celeba,
    chairs3d,
    csv_modalities,
    dsprites,
    faces3d,
    fashion_labels,
    images,
    mnist,
    mnist_styles,
    mpi3d,
    pendulum,
    shapes3d,
    smallnorb,
    sprite_pairs,
    sprites,
)
from unbraid.data.array_modalities import from_arrays
from unbraid.data.base import data_home, dataset, load
from unbraid.data.csv_modalities import from_csv
from unbraid.data.factors import Factor, FactorDataset, Pixels, factor_numbers, pack_bits
from unbraid.data.files import Description, Recipe, Status, check, describe, fetch
from unbraid.data.images import from_array, from_dataset, from_folder
from unbraid.data.modalities import MultimodalDataset, multimodal
from unbraid.data.modality import ClassLabels, Modality
from unbraid.data.stroke_measures import digit_width, stroke_thickness

__all__ = [
    "ClassLabels",
    "Description",
    "Factor",
    "FactorDataset",
    "Modality",
    "MultimodalDataset",
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
    "from_arrays",
    "from_csv",
    "from_dataset",
    "from_folder",
    "load",
    "multimodal",
    "pack_bits",
    "stroke_thickness",
]
