r"""The mutual information gap of parts of a model (msvae2020, section 4.1): what disentanglement a second stage leaves.

`mig-of/blocks` scores each latent block alone, as if the others were not there: of a model in stages c is the first
stage's code, whatever z holds besides. `mig-of/re-encoded` is the gap of the first stage's codes of what the second one
drew, E(G(y, z)): if it falls below that of c, the refined images no longer show what c says.

Both are `mig/histogram-mean` of other codes: 20 bins of equal width, 10,000 rows.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import reconstructed
from unbraid.metrics.information.mig import mig, note_left_out
from unbraid.models import Model, as_stage

CHUNK = 256
"""Rows that are decoded and encoded again at a time."""


@metric("mig-of/blocks", reference="msvae2020", needs=("factors",), bounds=(0, 1))
def blocks(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    bins: int = 20,
    samples: int = 10_000,
    resamples: int = 100,
) -> list[Score]:
    """Mutual information gap of posterior means of each latent block of at least two variables, by histograms."""
    table, made, start = evaluation.tabulate(samples, factors), [], 0
    for name, block in evaluation.space.blocks.items():
        columns = slice(start, start + block.width)
        start += block.width
        if block.width > 1:
            part = table._replace(codes=table.codes[:, columns], latents=table.latents[columns])
            score = part.score(mig, bins=bins, samples=samples, resamples=resamples)
            made.append(replace(note_left_out(score, evaluation), metric="mig-of", protocol="blocks", part=name))
    if not made:
        raise UsageError("MIG sets the best latent of a block against its second best, and no block has two latents.")
    return made


@metric("mig-of/re-encoded", reference="msvae2020", needs=("factors", "staged"), bounds=(0, 1))
def re_encoded(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    bins: int = 20,
    samples: int = 10_000,
    resamples: int = 100,
) -> Score:
    """Mutual information gap of the first stage's codes of a second stage's reconstructions, by histograms."""
    positions = evaluation.choose(min(samples, len(evaluation)))
    codes = _codes(evaluation, as_stage(evaluation.model).first, positions)
    values, names = evaluation.choose_factors(factors)
    latents = list(evaluation.code_names[: codes.shape[1]])
    how: dict[str, Any] = {"bins": bins, "samples": None, "resamples": resamples, "seed": evaluation.seed}
    score = mig(codes, values[positions], names=names, latents=latents, **how)
    return replace(note_left_out(score, evaluation), metric="mig-of", protocol="re-encoded")


def _codes(evaluation: Evaluation, first: Model, positions: Tensor) -> Tensor:
    """The first stage's codes [rows, width] of reconstructions."""
    with torch.no_grad():
        parts = [first.encode(reconstructed(evaluation, part)) for part in positions.split(CHUNK)]
    return torch.cat([first.space.center(part) for part in parts])
