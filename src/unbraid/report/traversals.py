"""Traversals: what the decoder draws when one latent variable moves and all others stay."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics import Evaluation
from unbraid.metrics.unsupervised.bound import latent_kl
from unbraid.report.pictures import WHITE, Picture, check_images, enlargement, pitch, tiled

Range = Literal["range", "quantiles"]


class Traversal(NamedTuple):
    """One row per latent variable, the most informative first.

    `latents` are coordinates of the code, `kl` their closed-form KL in nats, `values` [rows, columns] what each is
    set to, and `images` [rows, columns, channels, height, width] what the decoder expects there.
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
    same = by == "range" and evaluation.space.density
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
    """Move one coordinate at a time away from the code of row `base` (-1: from the prior's mean; None: some row).

    Values run from -span to span, or over the 2.5% to 97.5% quantiles of the posterior means. `latents` names the
    coordinates to show; by default all of them, ordered by KL.
    """
    check_images(evaluation.dataset.shape)
    if columns < 2 or not span > 0:
        raise UsageError(f"A traversal needs at least 2 columns and a span above 0, not {columns} and {span}.")
    by = by if evaluation.space.density else "quantiles"  # a point has no place outside of its own few values
    kl = coordinate_kl(evaluation)
    chosen = _coordinates(evaluation, latents) if latents is not None else kl.argsort(descending=True).tolist()
    steps = _steps(evaluation, by, span, columns)[chosen]  # [rows, columns]
    codes = moved(_base_code(evaluation, base), chosen, steps)
    images = decode(evaluation, codes.flatten(0, 1)).unflatten(0, steps.shape)
    names = evaluation.code_names
    return Traversal(tuple(chosen), tuple(names[j] for j in chosen), tuple(kl[chosen].tolist()), steps, images)


def moved(base: Tensor, latents: Sequence[int], values: Tensor) -> Tensor:
    """Codes [rows, columns, width]: row i is `base` with coordinate `latents[i]` set to `values[i]`."""
    codes = base.expand(*values.shape, -1).clone()
    for row, latent in enumerate(latents):
        codes[row, :, latent] = values[row]
    return codes


def decode(evaluation: Evaluation, codes: Tensor) -> Tensor:
    """Expected observations of codes [n, width]."""
    model = evaluation.model
    with torch.no_grad():
        parts = [model.likelihood.mean(model.decode(part)) for part in codes.split(1024)]  # type: ignore
    return torch.cat(parts)


def coordinate_kl(evaluation: Evaluation) -> Tensor:
    """Closed-form KL [width] of the variable that each coordinate belongs to.

    Of one without a density, the entropy of its values: what it tells of a row, as its KL would bound it.
    """
    if not evaluation.space.density:
        return torch.stack([_entropy(column) for column in evaluation.means.T])
    blocks = evaluation.space.blocks.values()
    parts = latent_kl(evaluation).split([block.leaves for block in blocks])
    return torch.cat([p.repeat_interleave(b.width // b.leaves) for p, b in zip(parts, blocks, strict=True)])


def _entropy(values: Tensor) -> Tensor:
    """Of a variable with few values, in nats."""
    share = values.unique(return_counts=True)[1].cpu().double() / len(values)
    return -(share * share.log()).sum()


def _coordinates(evaluation: Evaluation, names: Sequence[str]) -> list[int]:
    known = evaluation.code_names
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


def _steps(evaluation: Evaluation, by: Range, span: float, columns: int) -> Tensor:
    """Values [width, columns] that each coordinate takes."""
    means = evaluation.means
    if by == "range":
        return torch.linspace(-span, span, columns, device=means.device).expand(means.shape[1], -1)
    some = means[evaluation.choose(100_000)]  # torch.quantile takes no more than 2^24 numbers
    return some.quantile(torch.linspace(0.025, 0.975, columns, device=means.device), dim=0).T


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
    return page.convert("RGB")
