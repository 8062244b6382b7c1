"""Traversals: what the decoder draws when one latent variable moves and all others stay."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.metrics.unsupervised.elbo import compute_latent_kl
from unbraid.report.pictures import WHITE, Picture, check_images, enlargement, pitch, tiled

Range = Literal["range", "quantiles"]


class Traversal(NamedTuple):
    """One row per latent variable, the most informative first.

    `latents` are places among the variables, `kl` their KL in nats, `values` [rows, columns] what each is set to (the
    number of a class where it has classes, NaN where a row has fewer columns than others), and `images` [rows,
    columns, channels, height, width] what the decoder expects there, white where there is nothing.
    """

    latents: tuple[int, ...]
    names: tuple[str, ...]
    kl: tuple[float, ...]
    values: Tensor
    images: Tensor


def traversal(
    evaluation: Evaluation,
    *,
    latents: Sequence[str] | None = None,
    base: int | None = None,
    by: Range = "range",
    span: float = 2.0,
    columns: int = 9,
) -> Picture:
    """A labelled picture of `traverse`; save it with `.save("traversal.png")`."""
    made = traverse(evaluation, latents=latents, base=base, by=by, span=span, columns=columns)
    labels = [f"{name}  {kl:.2f} nats" for name, kl in zip(made.names, made.kl, strict=True)]
    same = bool((made.values == made.values[0]).all())  # a heading is for every row below it
    headings = [f"{v:+.1f}" for v in made.values[0].tolist()] if same else []
    return labelled(tiled(made.images, WHITE), labels, headings, made.images.shape[-2], made.images.shape[-1])


def traverse(
    evaluation: Evaluation,
    *,
    latents: Sequence[str] | None = None,
    base: int | None = None,
    by: Range = "range",
    span: float = 2.0,
    columns: int = 9,
) -> Traversal:
    """Move one variable at a time away from the code of row `base` (-1: from the prior's mean; None: some row).

    A Normal one runs from -span to span, or over the 2.5% to 97.5% quantiles of the posterior means, one with classes
    through all of them. `latents` names the variables to show; by default all of them, ordered by KL.
    """
    check_images(evaluation.dataset.shape)
    if columns < 2 or not span > 0:
        raise UsageError(f"A traversal needs at least 2 columns and a span above 0, not {columns} and {span}.")
    kl, names = variable_kl(evaluation), evaluation.space.leaf_names()
    chosen = _variables(names, latents) if latents is not None else kl.argsort(descending=True).tolist()
    places, start = _places(evaluation, by, span, columns), _base_code(evaluation, base)
    codes = torch.stack([moved(start, *places[leaf]) for leaf in chosen])
    images = decode(evaluation, codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
    values = torch.full(codes.shape[:2], torch.nan, device=codes.device)
    for row, leaf in enumerate(chosen):
        through = places[leaf].codes
        images[row, len(through) :] = 1.0
        values[row, : len(through)] = through[:, 0] if through.shape[1] == 1 else through.argmax(1).to(values)
    return Traversal(tuple(chosen), tuple(names[leaf] for leaf in chosen), tuple(kl[chosen].tolist()), values, images)


class Places(NamedTuple):
    """Coordinates of a variable, the codes [places, coordinates] that it takes, and the columns of the picture."""

    coordinates: list[int]
    codes: Tensor
    columns: int


def moved(base: Tensor, coordinates: Sequence[int], values: Tensor, columns: int) -> Tensor:
    """Codes [columns, width]: `base` with some coordinates set to `values` [at most columns, coordinates]."""
    codes = base.expand(columns, -1).clone()
    codes[: len(values), list(coordinates)] = values.to(codes)
    return codes


def decode(evaluation: Evaluation, codes: Tensor) -> Tensor:
    """Expected observations of codes [n, width]."""
    model = evaluation.model
    with torch.no_grad():
        parts = [model.likelihood.mean(model.decode(part)) for part in codes.split(1024)]  # type: ignore
    return torch.cat(parts)


def coordinate_kl(evaluation: Evaluation) -> Tensor:
    """KL [width] of the variable that each coordinate belongs to."""
    wide = torch.tensor([len(columns) for columns in evaluation.space.leaf_columns()])
    return variable_kl(evaluation).repeat_interleave(wide)


def variable_kl(evaluation: Evaluation) -> Tensor:
    """KL [variables], in closed form where there is one.

    Of one without a density, the entropy of its values: what it tells of a row, as its KL would bound it.
    """
    if not evaluation.space.has_density:
        return torch.stack([_entropy(column) for column in evaluation.means.T])
    return compute_latent_kl(evaluation)


def _entropy(values: Tensor) -> Tensor:
    """Of a variable with few values, in nats."""
    share = values.unique(return_counts=True)[1].cpu().double() / len(values)
    return -(share * share.log()).sum()


def _variables(known: Sequence[str], names: Sequence[str]) -> list[int]:
    for name in names:
        if name not in known:
            raise UsageError(f"There is no latent '{name}'; this model has {', '.join(known)}.")
    return [known.index(name) for name in names]


def _base_code(evaluation: Evaluation, base: int | None) -> Tensor:
    if base == -1:
        first, model = next(iter(evaluation.posterior.values())), evaluation.model
        prior = {**model.space.prior(like=first), **model.learned_prior()}
        return model.space.center_prior(prior)[0].detach()
    if base is None:
        return evaluation.means[evaluation.choose(1)[0]]
    if not 0 <= base < len(evaluation):
        raise UsageError(f"base must be a row from 0 to {len(evaluation) - 1}, or -1 for the prior's mean, not {base}.")
    return evaluation.means[base]


def _places(evaluation: Evaluation, by: Range, span: float, columns: int) -> list[Places]:
    """Where each variable is led; one without a density has no place outside of its own few values."""
    space, means = evaluation.space, evaluation.means
    codes = [b.traversal_codes(columns, span) for b in space.blocks.values() for _ in range(b.leaves)]
    if by == "quantiles" or not space.has_density:
        some = means[evaluation.choose(100_000)]  # torch.quantile takes no more than 2^24 numbers
        found = some.quantile(torch.linspace(0.025, 0.975, columns, device=means.device), dim=0)
        where = space.leaf_columns()
        codes = [found[:, own] if len(own) == 1 else each for own, each in zip(where, codes, strict=True)]
    most = max(len(each) for each in codes)
    return [Places(own, each, most) for own, each in zip(space.leaf_columns(), codes, strict=True)]


def labelled(picture: Picture, labels: list[str], headings: list[str], tall: int, wide: int) -> Picture:
    """A picture of tiles with a label beside each row and a heading above each column."""
    down, right = pitch(tall, wide, enlargement(wide))
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
