"""Pictures of a model of several modalities: reconstructions, samples, and what c and s_m mean, seen by combining them.

Only modalities of images are drawn; a label can be what an image is made from.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError, unknown
from unbraid.metrics import Evaluation
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.generation import cross_codes, generate
from unbraid.models.multimodal import SHARED, private_block
from unbraid.report.pictures import WHITE, Picture, check_images, tiled
from unbraid.types import Inputs, Shape

PRIOR = (0.2, 0.4, 0.85)
"""Blue, where latents are draws from their prior."""


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
    have c `prior_columns` more; blue stands where no image is (daunhawer2019, figures 2 and 6). With target = source it
    swaps c and s within a modality (figure 7). Latents of images are posterior means.
    """
    model = _drawing(evaluation, source) and _drawing(evaluation, target)
    if min(columns, rows, prior_rows, prior_columns) < 0 or columns + prior_columns < 1 or rows + prior_rows < 1:
        raise UsageError("A grid needs at least 1 column and 1 row, and no number below 0.")
    shared = _known(evaluation, source, columns, seed, 0)
    own = _known(evaluation, target, rows, seed, columns)
    c = torch.cat([_codes(model, source, SHARED, shared), _draws(model, SHARED, prior_columns, seed, shared)])
    block = private_block(target)
    s = None
    if block in model.space.blocks:
        s = torch.cat([_codes(model, target, block, own), _draws(model, block, prior_rows, seed, own)])
    shape, made = model.shapes[target], _coloured(cross_codes(model, target, c, s))
    blue = made.new_tensor(PRIOR).view(3, 1, 1).expand(made.shape[2:])
    top = torch.cat([_coloured(_fitted(shared, shape)), blue.expand(prior_columns, *blue.shape)])
    left = blue.repeat(len(made), 1, 1, 1) if s is not None else torch.ones_like(made[:, 0])
    if s is not None:
        left[: len(own)] = _coloured(own)
    grid = torch.cat([top.unsqueeze(0), made])
    return tiled(torch.cat([torch.cat([torch.ones_like(left[:1]), left]).unsqueeze(1), grid], 1), WHITE)


def reconstructed(evaluation: Evaluation, name: str, columns: int = 12) -> Picture:
    """Images of one modality above what is decoded of the posterior means given all that their rows have."""
    model = _drawing(evaluation, name)
    rows = _having(evaluation, name, columns, 0)
    with torch.no_grad():
        values = model.space.unjoin(model.space.center(model.encode(evaluation.dataset.inputs(rows))))
        made = model.expected_modality(name, values[SHARED], values.get(private_block(name)))
    return tiled(torch.stack([evaluation.dataset.observed(rows)[name], made]))


def sampled(evaluation: Evaluation, rows: int = 3, columns: int = 12, seed: int = 0) -> dict[str, Picture]:
    """Draws from the prior, a picture for each modality of images; what lies at one place has one c."""
    model = as_multimodal(evaluation.model)
    made = generate(model, count=rows * columns, seed=seed)
    return {name: tiled(made[name].unflatten(0, (rows, columns))) for name in drawable(model)}


def from_others(
    evaluation: Evaluation, source: str, target: str, *, columns: int = 10, rows: int = 10, seed: int = 0
) -> Picture:
    """Images of `target`, each row another draw of c given what heads the column, and of s from its prior.

    Images of `source` stand at the top, in a line of their own; of a label there is a column for each class, without.
    """
    model = _drawing(evaluation, target)
    if len(model.shapes[source]) == 3:
        top = _known(evaluation, source, columns, seed, 0)
        made = generate(model, {source: top}, count=rows, seed=seed, own="prior")[target].transpose(0, 1)
        return tiled(torch.cat([_fitted(top, model.shapes[target]).unsqueeze(0), made]), WHITE)
    classes = torch.arange(min(columns, model.shapes[source][0]))
    return tiled(generate(model, {source: classes}, count=rows, seed=seed)[target].transpose(0, 1), WHITE)


def drawable(model: MultimodalModel) -> list[str]:
    """Modalities of images."""
    return [name for name in model.modalities if len(model.shapes[name]) == 3]


def seen(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """Those of the modalities that some row has."""
    return [name for name in names if bool(evaluation.dataset.has(name, evaluation.rows).any())]


def _drawing(evaluation: Evaluation, name: str) -> MultimodalModel:
    """The model, if the modality can be drawn."""
    model = as_multimodal(evaluation.model)
    if name not in model.modalities:
        raise unknown("modality", name, model.modalities)
    check_images(model.shapes[name])
    return model


def _known(evaluation: Evaluation, name: str, count: int, seed: int, skip: int) -> Tensor:
    """Images [count, *shape] of random rows that have the modality."""
    return evaluation.dataset.observed(_having(evaluation, name, count, seed, skip))[name]


def _having(evaluation: Evaluation, name: str, count: int, seed: int, skip: int = 0) -> Tensor:
    """Random rows that have a modality."""
    order = evaluation.rows[evaluation.choose(len(evaluation))].roll(-seed * 97)
    order = order[evaluation.dataset.has(name, order)]
    if count and not len(order):
        raise UsageError(f"None of these {len(evaluation):,} rows has {name}; there is nothing to draw from.")
    return order.roll(-skip)[:count]  # few rows may be seen twice


def _codes(model: MultimodalModel, name: str, block: str, images: Tensor) -> Tensor:
    """Posterior means [n, width] of one block, given one modality alone."""
    if len(images) == 0:
        return images.new_zeros(0, model.space.blocks[block].width)
    with torch.no_grad():
        return model.space.blocks[block].center(model.encode(Inputs({name: images}))[block])


def _draws(model: MultimodalModel, block: str, count: int, seed: int, like: Tensor) -> Tensor:
    width = model.space.blocks[block].width
    if count == 0:
        return like.new_zeros(0, width)
    return noise.normal(noise.seed_tensor(seed, device=like.device), 0, f"translation/{block}", (count, width))[0]


def _coloured(images: Tensor) -> Tensor:
    """Images [..., channels, height, width] in three channels."""
    whole = images if images.shape[-3] == 3 else images.mean(-3, keepdim=True)
    return whole.expand(*images.shape[:-3], 3, *images.shape[-2:])


def _fitted(images: Tensor, shape: Shape) -> Tensor:
    """Images in another modality's channels and size."""
    if len(images) == 0 or tuple(images.shape[1:]) == tuple(shape):
        return images.reshape(-1, *shape)
    scaled = F.interpolate(images, tuple(shape[1:]), mode="nearest")
    return scaled if scaled.shape[1] == shape[0] else scaled.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
