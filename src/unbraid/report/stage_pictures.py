"""Pictures of a staged model: observations x, the reconstruction y of each earlier stage, and the refined x."""

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.models import as_stage
from unbraid.report.pictures import WHITE, Picture, check_images, tile_images
from unbraid.report.traversals import add_labels


def triples(evaluation: Evaluation, *, columns: int = 12) -> Picture:
    """Return a labelled picture of x, y and the refined x of some rows; save it with `.save("triples.png")`."""
    names, images = decode_by_stage(evaluation, columns)
    return add_labels(tile_images(images, WHITE), names, [], images.shape[-2], images.shape[-1])


def decode_by_stage(evaluation: Evaluation, columns: int) -> tuple[list[str], Tensor]:
    """Return the names of the rows, and images [stages + 1, columns, *shape] of random observations.

    The rows of a model with two stages are x, y and refined x; with more stages they are x, y1, y2, … and refined x.
    """
    model = as_stage(evaluation.model)
    check_images(evaluation.dataset.shape)
    if columns < 1:
        raise UsageError(f"A picture needs at least 1 column, not {columns}.")
    rows = evaluation.choose(columns)
    with torch.no_grad():
        stages = model.decode_stages(evaluation.encode_means(rows))
    images = torch.stack([evaluation.dataset.images(evaluation.rows[rows]), *stages])
    earlier = ["y"] if len(stages) == 2 else [f"y{stage}" for stage in range(1, len(stages))]
    return ["x", *earlier, "refined x"], images
