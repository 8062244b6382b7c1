"""Traversals: decoded images while one latent variable moves and the others stay.

Also pictures of a staged model: observations x, the reconstruction y of each earlier stage, and the refined x.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from unbraid.errors import UsageError, unknown
from unbraid.metrics import Evaluation
from unbraid.metrics.generative.features.feature_sets import decode_means
from unbraid.metrics.unsupervised.elbo import compute_latent_kl
from unbraid.models import as_stage
from unbraid.printable import shorten
from unbraid.report.feature_traversal import draw_feature_picture
from unbraid.report.pictures import WHITE, Picture, check_images, choose_scale, make_frames, measure_pitch, tile_images

RANGES = ("range", "quantiles")

MAX_COLUMNS = 1000
"""More values in a row are taken for a typing error."""


class Traversal(NamedTuple):
    """One row per latent variable, the most informative first.

    `latents` are indices of variables, `kl` their KL in nats, `values` [rows, columns] the values they take (the index
    of a class if they have classes; NaN if a row has fewer columns than others), and `images` [rows, columns, *shape]
    the decoder means, white for NaN.
    """

    latents: tuple[int, ...]
    names: tuple[str, ...]
    kl: tuple[float, ...]
    values: Tensor
    images: Tensor


def traversal(evaluation: Evaluation, **options: Any) -> Picture:
    """Return a labelled picture of `traverse`, with its options: images, or lines of features.

    Save it with `.save("traversal.png")`, or as an animation with `.save("traversal.gif")` or `.apng`.
    """
    shown = traverse(evaluation, **options)
    if shown.images.ndim == 3:
        return draw_feature_picture(shown, evaluation.dataset)
    labels = [f"{name}  {kl:.2f} nats" for name, kl in zip(shown.names, shown.kl, strict=True)]
    same = bool((shown.values == shown.values[0]).all())  # a heading must hold for all rows below it
    headings = [f"{v:+.1f}" for v in shown.values[0].tolist()] if same else []
    picture = add_labels(tile_images(shown.images, WHITE), labels, headings, *shown.images.shape[-2:])
    picture.frames = make_frames([tile_images(column[None], WHITE) for column in shown.images.unbind(1)], shown.names)
    return picture


def traverse(
    evaluation: Evaluation,
    *,
    latents: Sequence[str] | None = None,
    base: int | None = None,
    by: str = "range",
    span: float = 2.0,
    columns: int = 9,
) -> Traversal:
    """Return images while one variable at a time moves and the others stay as in the code of row `base`.

    `base` is -1 for the prior mean, and None for a random row. A Normal variable takes values from -span to span, or
    the 2.5% to 97.5% quantiles of the posterior means; one with classes takes each of them. `latents` names the
    variables to show; by default all of them, ordered by KL.
    """
    _ = evaluation.dataset.shape  # raises if there are several modalities
    if by not in RANGES:
        raise unknown("value of by", by, RANGES)
    if not 2 <= columns <= MAX_COLUMNS or not 0 < span < math.inf:
        given = f"{shorten(str(columns))} and {span}"
        raise UsageError(f"A traversal needs 2 to {MAX_COLUMNS:,} columns and a finite span above 0, not {given}.")
    kl, names = compute_variable_kl(evaluation), evaluation.space.leaf_names()
    for name in latents or ():
        if name not in names:
            raise UsageError(f"There is no latent '{name}'; this model has {', '.join(names)}.")
    order = kl.argsort(descending=True).tolist()
    chosen = order if latents is None else [names.index(name) for name in latents]
    paths, start = _choose_paths(evaluation, by, span, columns), _encode_base(evaluation, base)
    codes = torch.stack([set_coordinates(start, *paths[leaf]) for leaf in chosen])
    images = decode_means(evaluation, codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
    values = torch.full(codes.shape[:2], torch.nan, device=codes.device)
    for row, leaf in enumerate(chosen):
        path = paths[leaf].codes
        images[row, len(path) :] = 1.0
        values[row, : len(path)] = path[:, 0] if path.shape[1] == 1 else path.argmax(1).to(values)
    return Traversal(tuple(chosen), tuple(names[leaf] for leaf in chosen), tuple(kl[chosen].tolist()), values, images)


class LatentPath(NamedTuple):
    """Coordinates of a variable, the codes [steps, coordinates] that it takes, and the columns of the picture."""

    coordinates: list[int]
    codes: Tensor
    columns: int


def set_coordinates(base: Tensor, coordinates: Sequence[int], values: Tensor, columns: int) -> Tensor:
    """Return codes [columns, width]: `base` with coordinates set to `values` [at most columns, coordinates]."""
    codes = base.expand(columns, -1).clone()
    codes[: len(values), list(coordinates)] = values.to(codes)
    return codes


def compute_coordinate_kl(evaluation: Evaluation) -> Tensor:
    """Return, for each coordinate [width], the KL of its variable."""
    wide = torch.tensor([len(columns) for columns in evaluation.space.leaf_columns()])
    return compute_variable_kl(evaluation).repeat_interleave(wide)


def compute_variable_kl(evaluation: Evaluation) -> Tensor:
    """Return the KL [variables], in closed form if there is one.

    A variable without a density has the entropy of its values instead: both bound its information about a row.
    """
    if evaluation.space.has_density:
        return compute_latent_kl(evaluation)
    counts = [column.unique(return_counts=True)[1].cpu().double() for column in evaluation.means.T]
    shares = [count / len(evaluation) for count in counts]
    return torch.stack([-(share * share.log()).sum() for share in shares])


def _encode_base(evaluation: Evaluation, base: int | None) -> Tensor:
    if base == -1:
        first, model = next(iter(evaluation.posterior.values())), evaluation.model
        prior = {**model.space.prior(like=first), **model.learned_prior()}
        return model.space.center_prior(prior)[0].detach()
    if base is None:
        return evaluation.means[evaluation.choose(1)[0]]
    if not 0 <= base < len(evaluation):
        raise UsageError(f"base must be a row from 0 to {len(evaluation) - 1}, or -1 for the prior's mean, not {base}.")
    return evaluation.means[base]


def _choose_paths(evaluation: Evaluation, by: str, span: float, columns: int) -> list[LatentPath]:
    """Return the path of each variable; without a density it stays within the quantiles of the posterior means."""
    space, means = evaluation.space, evaluation.means
    codes = [b.traversal_codes(columns, span) for b in space.blocks.values() for _ in range(b.leaves)]
    if by == "quantiles" or not space.has_density:
        rows = means[evaluation.choose(100_000)]  # torch.quantile takes at most 2^24 numbers
        quantiles = rows.quantile(torch.linspace(0.025, 0.975, columns, device=means.device), dim=0)
        pairs = zip(space.leaf_columns(), codes, strict=True)
        codes = [quantiles[:, leaf] if len(leaf) == 1 else each for leaf, each in pairs]
    longest = max(len(each) for each in codes)
    return [LatentPath(leaf, each, longest) for leaf, each in zip(space.leaf_columns(), codes, strict=True)]


def add_labels(picture: Picture, labels: list[str], headings: list[str], tall: int, wide: int) -> Picture:
    """Return a picture of tiles with a label left of each row and a heading above each column."""
    down, right = measure_pitch(tall, wide, choose_scale(wide))
    height = max(11, min(18, down // 4))
    font = ImageFont.load_default(height)
    left = 2 * height + int(max(font.getlength(label) for label in labels))
    top = 2 * height if headings else 0
    page = Image.new("RGBA", (picture.width + left + height, picture.height + top + height), WHITE)
    page.paste(picture, (left, top))
    draw = ImageDraw.Draw(page)
    for row, label in enumerate(labels):
        draw.text((left - height, top + row * down + down // 2), label, fill="black", font=font, anchor="rm")
    for column, heading in enumerate(headings):
        draw.text((left + column * right + right // 2, height), heading, fill="black", font=font, anchor="mm")
    return Picture.of(page.convert("RGB"))


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
