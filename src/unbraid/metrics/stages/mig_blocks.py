r"""The mutual information gap of parts of a staged model (msvae2020, section 4.1): does a second stage preserve it?

`mig-of/blocks` scores each latent block separately; in a staged model c is the first stage's code. `mig-of/re-encoded`
scores the first stage's codes of the second stage's reconstructions, E(G(y, z)): if it falls below that of c, the
refined images no longer show c.

Both are `mig/histogram-mean` of these codes: 20 bins of equal width, 10,000 rows.
"""

from dataclasses import replace
from typing import Any

import torch

from unbraid.errors import UsageError
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.feature_sets import reconstruct
from unbraid.metrics.information.mig import mig, note_left_out
from unbraid.models import as_stage

BATCH = 256


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
    table, scores, start = evaluation.tabulate(samples, factors), [], 0
    for name, block in evaluation.space.blocks.items():
        columns = slice(start, start + block.width)
        start += block.width
        if block.width > 1:
            part = table._replace(codes=table.codes[:, columns], latents=table.latents[columns])
            score = part.score(mig, bins=bins, samples=samples, resamples=resamples)
            scores.append(replace(note_left_out(score, evaluation), metric="mig-of", protocol="blocks", part=name))
    if not scores:
        raise UsageError("MIG compares the best latent of a block with the second best, and no block has two latents.")
    return scores


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
    first = as_stage(evaluation.model).first
    with torch.no_grad():
        parts = [first.encode(reconstruct(evaluation, part)) for part in positions.split(BATCH)]
    codes = torch.cat([first.space.center(part) for part in parts])
    values, names = evaluation.choose_factors(factors)
    latents = list(evaluation.code_names[: codes.shape[1]])
    settings: dict[str, Any] = {"bins": bins, "samples": None, "resamples": resamples, "seed": evaluation.seed}
    score = mig(codes, values[positions], names=names, latents=latents, **settings)
    return replace(note_left_out(score, evaluation), metric="mig-of", protocol="re-encoded")
