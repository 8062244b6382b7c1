"""Draws of the shared latent given sets of modalities, all sets in one pass, and the observations decoded from them."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError
from unbraid.latents.fusion import DiagonalNormal
from unbraid.metrics.base import Evaluation
from unbraid.metrics.generative.features.base import choose_batch_size
from unbraid.models import MultimodalModel
from unbraid.models.generation import CHOICE
from unbraid.models.multimodal import SHARED, ModalityPosteriors, private_block
from unbraid.noise import Need
from unbraid.progress import track

Shared = Literal["drawn", "mean"]
"""Take c as a draw from q(c|x_A), or as its mean."""

DECODE_BATCHES = (512, 4096)
"""Observations per batch on a CPU and on a GPU."""


def restrict_to(posteriors: ModalityPosteriors, sets: Tensor) -> ModalityPosteriors:
    """Return posteriors [rows x sets, …], rows first, with only the modalities of each set [sets, M] present."""
    experts = (part.repeat_interleave(len(sets), 0) for part in posteriors.experts)
    present = (posteriors.present.unsqueeze(1) & sets).flatten(0, 1)
    return ModalityPosteriors(DiagonalNormal(*experts), {}, present)


def infer_shared_codes(
    model: MultimodalModel,
    posteriors: ModalityPosteriors,
    sets: Tensor,
    count: int,
    seeds: Tensor,
    step: int,
    shared: Shared,
) -> Tensor:
    """Return `count` codes c [rows, sets, count, D] of q(c|x_A) for every set A [sets, M]."""
    subset, width = restrict_to(posteriors, sets), model.space.blocks[SHARED].width
    if shared == "mean":
        c = model.fuse(subset).mean.unsqueeze(1).expand(-1, count, -1)
    else:
        needs = {CHOICE: Need("uniform", (subset.rows, count)), SHARED: Need("normal", (subset.rows, count, width))}
        drawn = {name: tensor[0] for name, tensor in noise.draw(needs, seeds, step).items()}
        c = model.draw_shared(subset, drawn[CHOICE], drawn[SHARED])
    return c.unflatten(0, (posteriors.rows, len(sets)))


def decode_modality(model: MultimodalModel, name: str, c: Tensor, seeds: Tensor, step: int) -> Tensor:
    """Return expected observations [n, *shape] of a modality at codes c [n, D], with s_m drawn from its prior."""
    block = model.space.blocks.get(private_block(name))
    s = None if block is None else noise.normal(seeds, step, private_block(name), (len(c), block.width))[0].to(c.dtype)
    expected = model.expected_modality(name, c, s)
    if not bool(expected.isfinite().all()):
        raise DataError(f"The decoder of {name} returns NaN or infinite values.")
    return expected


def encode_in_batches(
    evaluation: Evaluation, model: MultimodalModel, positions: Tensor, decodings: int, task: str
) -> Iterator[tuple[int, Tensor, ModalityPosteriors]]:
    """Yield batch number, positions and posteriors; batches leave room for `decodings` decoded observations per row."""
    rows = max(1, choose_batch_size(positions.device, *DECODE_BATCHES) // decodings)
    with torch.no_grad():
        for number, part in enumerate(track(task, positions.split(rows))):
            yield number, part, model.encode_each(evaluation.dataset.inputs(evaluation.rows[part]))


def find_rows_with_block(evaluation: Evaluation, model: MultimodalModel, rows: Tensor) -> dict[str, Tensor]:
    """Return a mask [rows] per latent block: all rows for c, the rows with x_m for s_m."""
    present = {private_block(name): evaluation.dataset.has(name, rows) for name in model.modalities}
    masks = {name: present.get(name, torch.ones_like(rows, dtype=torch.bool)) for name in model.space.blocks}
    for name, mask in masks.items():
        if not bool(mask.any()):
            raise DataError(f"None of these {len(rows)} rows has the modality that {name} is encoded from.")
    return masks
