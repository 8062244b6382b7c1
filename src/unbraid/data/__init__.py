"""Data sets: rendered, converted from public files, or your own."""

from unbraid.data import (  # noqa: F401 (they register themselves)
    cars3d,
    celeba,
    chairs3d,
    dsprites,
    faces3d,
    fashion_labels,
    images,
    mnist,
    mpi3d,
    paired,
    pairs,
    pendulum,
    shapes3d,
    smallnorb,
    sprites,
    styles,
)
from unbraid.data.arrays import from_arrays
from unbraid.data.base import data_home, dataset, load
from unbraid.data.factors import Factor, FactorDataset, Pixels, pack_bits
from unbraid.data.files import Description, Recipe, Status, check, describe, fetch
from unbraid.data.images import from_array, from_dataset, from_folder
from unbraid.data.modalities import Labels, Modality, MultimodalDataset, multimodal
from unbraid.data.numbers import factor_numbers
from unbraid.data.paired import from_csv
from unbraid.data.strokes import digit_width, stroke_thickness

__all__ = [
    "Description",
    "Factor",
    "FactorDataset",
    "Labels",
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
