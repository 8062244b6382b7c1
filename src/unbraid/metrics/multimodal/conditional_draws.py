"""Draws of the shared latent given any sets of modalities, all sets at once, and what is decoded from them."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError
from unbraid.latents.fusion import DiagonalNormal
from unbraid.metrics.base import Evaluation
from unbraid.metrics.generative.features.base import batch_on
from unbraid.models import MultimodalModel
from unbraid.models.generation import CHOICE
from unbraid.models.multimodal import SHARED, ModalityPosteriors, private_block
from unbraid.noise import Need
from unbraid.progress import progress

Shared = Literal["drawn", "mean"]
"""Whether c is drawn from q(c|x_A), or is its mean."""

AT_ONCE = (512, 4096)
"""Observations that are decoded at a time, on a CPU and on a GPU."""


def restrict_to(posteriors: ModalityPosteriors, sets: Tensor) -> ModalityPosteriors:
    """Return the posteriors with only the modalities of each set [sets, M] present, as [rows x sets, …]: rows first."""
    experts = (part.repeat_interleave(len(sets), 0) for part in posteriors.experts)
    present = (posteriors.present.unsqueeze(1) & sets).flatten(0, 1)
    return ModalityPosteriors(DiagonalNormal(*experts), {}, present)


def shared_codes(
    model: MultimodalModel,
    posteriors: ModalityPosteriors,
    sets: Tensor,
    count: int,
    seeds: Tensor,
    step: int,
    shared: Shared,
) -> Tensor:
    """Return c [rows, sets, count, D] of q(c|x_A) for every set A [sets, M]."""
    some, width = restrict_to(posteriors, sets), model.space.blocks[SHARED].width
    if shared == "mean":
        c = model.fuse(some).mean.unsqueeze(1).expand(-1, count, -1)
    else:
        needs = {CHOICE: Need("uniform", (some.rows, count)), SHARED: Need("normal", (some.rows, count, width))}
        drawn = {name: tensor[0] for name, tensor in noise.draw(needs, seeds, step).items()}
        c = model.draw_shared(some, drawn[CHOICE], drawn[SHARED])
    return c.unflatten(0, (posteriors.rows, len(sets)))


def made_of(model: MultimodalModel, name: str, c: Tensor, seeds: Tensor, step: int) -> Tensor:
    """Return expected observations [n, *shape] of a modality at codes c [n, D], each with its own draw of s_m."""
    block = model.space.blocks.get(private_block(name))
    s = None if block is None else noise.normal(seeds, step, private_block(name), (len(c), block.width))[0].to(c.dtype)
    made = model.expected_modality(name, c, s)
    if not bool(made.isfinite().all()):
        raise DataError(f"The decoder of {name} returns NaN or infinite values.")
    return made


def posteriors_in_parts(
    evaluation: Evaluation, model: MultimodalModel, positions: Tensor, each: int, what: str
) -> Iterator[tuple[int, Tensor, ModalityPosteriors]]:
    """Yield a number, some positions and their modalities' posteriors, few enough for `each` decodings of a row."""
    rows = max(1, batch_on(positions.device, *AT_ONCE) // each)
    with torch.no_grad(), progress(what, len(positions)) as bar:
        for number, part in enumerate(positions.split(rows)):
            yield number, part, model.encode_each(evaluation.dataset.inputs(evaluation.rows[part]))
            bar.advance(len(part))


def rows_with_block(evaluation: Evaluation, model: MultimodalModel, rows: Tensor) -> dict[str, Tensor]:
    """Return for each latent block the rows [rows] that it can be read from: c from anything, s_m from x_m."""
    own = {private_block(name): evaluation.dataset.has(name, rows) for name in model.modalities}
    found = {name: own.get(name, torch.ones_like(rows, dtype=torch.bool)) for name in model.space.blocks}
    for name, mask in found.items():
        if not bool(mask.any()):
            raise DataError(f"None of these {len(rows)} rows has the modality that {name} is read from.")
    return found
