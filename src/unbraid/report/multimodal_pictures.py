"""Pictures of a multimodal model: reconstructions, samples, and grids that combine c and s_m.

Only images are drawn; a label can be the condition of an image.
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
from unbraid.report.pictures import WHITE, Picture, check_images, tile_images
from unbraid.types import Inputs, Shape

PRIOR_BLUE = (0.2, 0.4, 0.85)
"""The colour in place of an image where latents are draws from their prior."""


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
    """Return a grid of the modality `target`: a column has c of the image of `source` at its top, a row has one s.

    The first `rows` rows have s of the image of `target` at their left; `prior_rows` more rows have draws of s, and
    `prior_columns` more columns draws of c, from the prior, marked blue (daunhawer2019, figures 2 and 6). With target =
    source it swaps c and s within a modality (figure 7). Latents of images are posterior means.
    """
    _check_drawable(evaluation, source)
    _check_drawable(evaluation, target)
    model = as_multimodal(evaluation.model)
    if min(columns, rows, prior_rows, prior_columns) < 0 or columns + prior_columns < 1 or rows + prior_rows < 1:
        raise UsageError("A grid needs at least 1 column and 1 row, and no number below 0.")
    sources = _choose_images(evaluation, source, columns, seed, 0)
    targets = _choose_images(evaluation, target, rows, seed, columns)
    c = torch.cat([_encode(model, source, SHARED, sources), _draw_prior(model, SHARED, prior_columns, seed, sources)])
    block = private_block(target)
    s = None
    if block in model.space.blocks:
        s = torch.cat([_encode(model, target, block, targets), _draw_prior(model, block, prior_rows, seed, targets)])
    images = _to_rgb(cross_codes(model, target, c, s))
    blue = images.new_tensor(PRIOR_BLUE).view(3, 1, 1).expand(images.shape[2:])
    top = torch.cat([_to_rgb(_fit(sources, model.shapes[target])), blue.expand(prior_columns, *blue.shape)])
    left = blue.repeat(len(images), 1, 1, 1) if s is not None else torch.ones_like(images[:, 0])
    if s is not None:
        left[: len(targets)] = _to_rgb(targets)
    grid = torch.cat([top.unsqueeze(0), images])
    return tile_images(torch.cat([torch.cat([torch.ones_like(left[:1]), left]).unsqueeze(1), grid], 1), WHITE)


def draw_reconstructions(evaluation: Evaluation, name: str, columns: int = 12) -> Picture:
    """Return images of one modality above their reconstructions from all modalities of their rows."""
    _check_drawable(evaluation, name)
    model, rows = as_multimodal(evaluation.model), _choose_rows(evaluation, name, columns, 0)
    with torch.no_grad():
        values = model.space.unjoin(model.space.center(model.encode(evaluation.dataset.inputs(rows))))
        expected = model.expected_modality(name, values[SHARED], values.get(private_block(name)))
    return tile_images(torch.stack([evaluation.dataset.observed(rows)[name], expected]))


def draw_samples(evaluation: Evaluation, rows: int = 3, columns: int = 12, seed: int = 0) -> dict[str, Picture]:
    """Return a picture of prior samples per modality of images; tiles at the same place share c."""
    model = as_multimodal(evaluation.model)
    samples = generate(model, count=rows * columns, seed=seed)
    return {name: tile_images(samples[name].unflatten(0, (rows, columns))) for name in list_image_modalities(model)}


def draw_from_others(
    evaluation: Evaluation,
    source: str,
    target: str,
    *,
    columns: int = 10,
    rows: int = 10,
    seed: int = 0,
    first: int = 0,
) -> Picture:
    """Return images of `target`; each column has one condition, each row another draw of c given it and of s.

    Conditions are images of `source`, shown in the first row, or classes of a label from `first` on, not shown.
    """
    _check_drawable(evaluation, target)
    model = as_multimodal(evaluation.model)
    if len(model.shapes[source]) == 3:
        top = _choose_images(evaluation, source, columns, seed, 0)
        images = generate(model, {source: top}, count=rows, seed=seed, own="prior")[target].transpose(0, 1)
        return tile_images(torch.cat([_fit(top, model.shapes[target]).unsqueeze(0), images]), WHITE)
    classes = torch.arange(first, min(first + columns, model.shapes[source][0]))
    return tile_images(generate(model, {source: classes}, count=rows, seed=seed)[target].transpose(0, 1), WHITE)


def list_image_modalities(model: MultimodalModel) -> list[str]:
    return [name for name in model.modalities if len(model.shapes[name]) == 3]


def list_present_modalities(evaluation: Evaluation, names: Sequence[str]) -> list[str]:
    """Return the modalities that at least one row has."""
    return [name for name in names if bool(evaluation.dataset.has(name, evaluation.rows).any())]


def _check_drawable(evaluation: Evaluation, name: str) -> None:
    model = as_multimodal(evaluation.model)
    if name not in model.modalities:
        raise unknown("modality", name, model.modalities)
    check_images(model.shapes[name])


def _choose_images(evaluation: Evaluation, name: str, count: int, seed: int, skip: int) -> Tensor:
    """Return images [count, *shape] of random rows that have the modality."""
    return evaluation.dataset.observed(_choose_rows(evaluation, name, count, seed, skip))[name]


def _choose_rows(evaluation: Evaluation, name: str, count: int, seed: int, skip: int = 0) -> Tensor:
    """Return random rows that have a modality."""
    order = evaluation.rows[evaluation.choose(len(evaluation))].roll(-seed * 97)
    order = order[evaluation.dataset.has(name, order)]
    if count and not len(order):
        raise UsageError(f"None of these {len(evaluation):,} rows has {name}, so there is nothing to draw.")
    return order.roll(-skip)[:count]  # with few rows some repeat


def _encode(model: MultimodalModel, name: str, block: str, images: Tensor) -> Tensor:
    """Return the posterior means [n, width] of one block given one modality."""
    if len(images) == 0:
        return images.new_zeros(0, model.space.blocks[block].width)
    with torch.no_grad():
        return model.space.blocks[block].center(model.encode(Inputs({name: images}))[block])


def _draw_prior(model: MultimodalModel, block: str, count: int, seed: int, like: Tensor) -> Tensor:
    width = model.space.blocks[block].width
    if count == 0:
        return like.new_zeros(0, width)
    return noise.normal(noise.seed_tensor(seed, device=like.device), 0, f"translation/{block}", (count, width))[0]


def _to_rgb(images: Tensor) -> Tensor:
    """Return images [..., channels, height, width] in three channels."""
    grey_or_rgb = images if images.shape[-3] == 3 else images.mean(-3, keepdim=True)
    return grey_or_rgb.expand(*images.shape[:-3], 3, *images.shape[-2:])


def _fit(images: Tensor, shape: Shape) -> Tensor:
    """Return images in another modality's channels and size."""
    if len(images) == 0 or tuple(images.shape[1:]) == tuple(shape):
        return images.reshape(-1, *shape)
    scaled = F.interpolate(images, tuple(shape[1:]), mode="nearest")
    return scaled if scaled.shape[1] == shape[0] else scaled.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
