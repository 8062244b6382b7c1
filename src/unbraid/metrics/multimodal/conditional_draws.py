"""Draws of the shared latent given any sets of modalities, all sets at once, and what is decoded from them."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError
from unbraid.latents.fusion import Gaussian
from unbraid.metrics.base import Evaluation
from unbraid.metrics.generative.features.base import batch_on
from unbraid.models import Multimodal
from unbraid.models.generation import CHOICE
from unbraid.models.multimodal import SHARED, Beliefs, private
from unbraid.noise import Need
from unbraid.progress import progress

Shared = Literal["drawn", "mean"]
"""Whether c is drawn from q(c|x_A), or is its mean."""

AT_ONCE = (512, 4096)
"""Observations that are decoded at a time, on a CPU and on a GPU."""


def shared_codes(
    model: Multimodal, beliefs: Beliefs, sets: Tensor, count: int, seeds: Tensor, step: int, shared: Shared
) -> Tensor:
    """c [rows, sets, count, D] of q(c|x_A) for every set A [sets, M]."""
    experts = Gaussian(*(part.repeat_interleave(len(sets), 0) for part in beliefs.experts))
    some = Beliefs(experts, {}, (beliefs.there.unsqueeze(1) & sets).flatten(0, 1))  # [rows x sets, …]
    width = model.space.blocks[SHARED].width
    if shared == "mean":
        c = model.fused(some).mean.unsqueeze(1).expand(-1, count, -1)
    else:
        needs = {CHOICE: Need("uniform", (some.rows, count)), SHARED: Need("normal", (some.rows, count, width))}
        drawn = {name: tensor[0] for name, tensor in noise.draw(needs, seeds, step).items()}
        c = model.drawn(some, drawn[CHOICE], drawn[SHARED])
    return c.unflatten(0, (beliefs.rows, len(sets)))


def made_of(model: Multimodal, name: str, c: Tensor, seeds: Tensor, step: int) -> Tensor:
    """Expected observations [n, *shape] of a modality at codes c [n, D], each with an s_m of its own from the prior."""
    block = model.space.blocks.get(private(name))
    s = None if block is None else noise.normal(seeds, step, private(name), (len(c), block.width))[0].to(c.dtype)
    made = model.expected_of(name, c, s)
    if not bool(made.isfinite().all()):
        raise DataError(f"The decoder of {name} returns NaN or infinite values.")
    return made


def beliefs_of(
    evaluation: Evaluation, model: Multimodal, positions: Tensor, each: int, what: str
) -> Iterator[tuple[int, Tensor, Beliefs]]:
    """A number, some positions and what the modalities of these rows say, so that `each` decodings of a row fit."""
    rows = max(1, batch_on(positions.device, *AT_ONCE) // each)
    with torch.no_grad(), progress(what, len(positions)) as bar:
        for number, part in enumerate(positions.split(rows)):
            yield number, part, model.beliefs(evaluation.dataset.inputs(evaluation.rows[part]))  # type: ignore[arg-type]
            bar.advance(len(part))


def having(evaluation: Evaluation, model: Multimodal, rows: Tensor) -> dict[str, Tensor]:
    """For each latent block the rows [rows] that have what it is read from: c from anything, s_m from x_m."""
    there, every = evaluation.dataset.present(rows), torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    own = {private(name): every if there is None else there[name] for name in model.names}
    found = {name: own.get(name, every) for name in model.space.blocks}
    for name, mask in found.items():
        if not bool(mask.any()):
            raise DataError(f"None of these {len(rows)} rows has the modality that {name} is read from.")
    return found
