"""Pictures of a model of several modalities: what c and s_m mean, seen by combining those of different observations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError, unknown
from unbraid.metrics import Evaluation
from unbraid.models import Multimodal
from unbraid.models.generation import crossed, several
from unbraid.models.multimodal import SHARED, private
from unbraid.report.pictures import WHITE, Picture, check_images, tiled
from unbraid.types import Shape


def translation(
    evaluation: Evaluation,
    source: str,
    target: str,
    *,
    columns: int = 10,
    rows: int = 5,
    prior_rows: int = 5,
    prior_columns: int = 0,
    seed: int = 0,
) -> Picture:
    """A grid of the modality `target`: columns keep c, that of an image of `source` at their top; rows keep s.

    The first `rows` have s of the image of `target` at their left, `prior_rows` more have draws from the prior, and so
    have c `prior_columns` more (daunhawer2019, figures 2 and 6). With target = source it swaps c and s within a
    modality (figure 7). Latents of images are posterior means.
    """
    model = several(evaluation.model)
    for name in (source, target):
        if name not in model.names:
            raise unknown("modality", name, model.names)
        check_images(model.shapes[name])
    if min(columns, rows, prior_rows, prior_columns) < 0 or columns + prior_columns < 1 or rows + prior_rows < 1:
        raise UsageError("A grid needs at least 1 column and 1 row, and no number below 0.")
    shared = _known(evaluation, source, columns, seed, 0)
    own = _known(evaluation, target, rows, seed, columns)
    c = torch.cat([_codes(model, source, SHARED, shared), _draws(model, SHARED, prior_columns, seed, shared)])
    block = private(target)
    s = None
    if block in model.space.blocks:
        s = torch.cat([_codes(model, target, block, own), _draws(model, block, prior_rows, seed, own)])
    shape, made = model.shapes[target], crossed(model, target, c, s)
    top = torch.cat([_fitted(shared, shape), shared.new_ones(prior_columns, *shape)])
    left = own.new_ones(len(made) + 1, *shape)  # white where there is no image
    left[1 : 1 + len(own)] = own[: len(made)]
    grid = torch.cat([top.unsqueeze(0), made])
    return tiled(torch.cat([left.unsqueeze(1), grid], 1), WHITE)


def _known(evaluation: Evaluation, name: str, count: int, seed: int, skip: int) -> Tensor:
    """Images [count, *shape] of random rows that have the modality."""
    data = evaluation.dataset
    order = evaluation.rows[evaluation.choose(len(evaluation))].roll(-seed * 97)
    order = order[: 64 * (count + skip + 1)]  # enough to look through
    there = data.present(order)
    order = order if there is None else order[there[name]]
    return data.observed(order[skip : skip + count])[name]


def _codes(model: Multimodal, name: str, block: str, images: Tensor) -> Tensor:
    """Posterior means [n, width] of one block, given one modality alone."""
    if len(images) == 0:
        return images.new_zeros(0, model.space.blocks[block].width)
    with torch.no_grad():
        return model.space.blocks[block].center(model.encode({name: images})[block])


def _draws(model: Multimodal, block: str, count: int, seed: int, like: Tensor) -> Tensor:
    width = model.space.blocks[block].width
    if count == 0:
        return like.new_zeros(0, width)
    return noise.normal(noise.seed_tensor(seed, device=like.device), 0, f"translation/{block}", (count, width))[0]


def _fitted(images: Tensor, shape: Shape) -> Tensor:
    """Images in another modality's channels and size."""
    if len(images) == 0 or tuple(images.shape[1:]) == tuple(shape):
        return images.reshape(-1, *shape)
    scaled = F.interpolate(images, tuple(shape[1:]), mode="nearest")
    return scaled if scaled.shape[1] == shape[0] else scaled.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
