"""Pictures of a model in stages: observations x, what each earlier stage makes of them (y), and the refined x."""

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.models import as_stage
from unbraid.report.pictures import WHITE, Picture, check_images, tiled
from unbraid.report.traversals import labelled


def triples(evaluation: Evaluation, *, columns: int = 12) -> Picture:
    """A labelled picture of x, y and the refined x of some rows; save it with `.save("triples.png")`."""
    names, images = by_stage(evaluation, columns)
    return labelled(tiled(images, WHITE), names, [], images.shape[-2], images.shape[-1])


def by_stage(evaluation: Evaluation, columns: int) -> tuple[list[str], Tensor]:
    """Names of the rows, and images [stages + 1, columns, *shape] of random observations at their mean codes.

    The rows of a model in two stages are x, y and refined x; further earlier stages are numbered, the first one first.
    """
    model = as_stage(evaluation.model)
    check_images(evaluation.dataset.shape)
    if columns < 1:
        raise UsageError(f"A picture needs at least 1 column, not {columns}.")
    rows = evaluation.choose(columns)
    with torch.no_grad():
        made = model.decode_stages(evaluation.encode_means(rows))
    images = torch.stack([evaluation.dataset.images(evaluation.rows[rows]), *made])
    earlier = ["y"] if len(made) == 2 else [f"y{stage}" for stage in range(1, len(made))]
    return ["x", *earlier, "refined x"], images
