"""Data sets: rendered, converted from public files, or your own."""

from unbraid.data import (  # noqa: F401 (they register themselves)
    cars3d,
    celeba,
    chairs3d,
    csv_modalities,
    dsprites,
    faces3d,
    images,
    mnist,
    mnist_styles,
    mpi3d,
    pendulum,
    shapes3d,
    smallnorb,
    sprite_pairs,
    sprites,
    tables,
)
from unbraid.data.array_modalities import from_arrays as from_arrays
from unbraid.data.base import (
    data_home as data_home,
    dataset as dataset,
    keep_loaded as keep_loaded,
    load as load,
)
from unbraid.data.csv_modalities import from_csv as from_csv
from unbraid.data.factors import (
    Factor as Factor,
    FactorDataset as FactorDataset,
    Pixels as Pixels,
    factor_numbers as factor_numbers,
    pack_bits as pack_bits,
)
from unbraid.data.files import (
    Description as Description,
    Recipe as Recipe,
    Status as Status,
    check as check,
    describe as describe,
    fetch as fetch,
)
from unbraid.data.images import (
    from_array as from_array,
    from_dataset as from_dataset,
    from_folder as from_folder,
    from_npy as from_npy,
)
from unbraid.data.modalities import MultimodalDataset as MultimodalDataset, multimodal as multimodal
from unbraid.data.modality import ClassLabels as ClassLabels, Modality as Modality
from unbraid.data.stroke_measures import digit_width as digit_width, stroke_thickness as stroke_thickness
from unbraid.data.tables import TableDataset as TableDataset, from_table as from_table
