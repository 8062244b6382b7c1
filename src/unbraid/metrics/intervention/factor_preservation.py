r"""Whether a picture keeps a factor's value while one latent is moved (esmaeili2018, figure 7).

Rows are encoded, one Normal coordinate j is set to places t in [-span, span], all else stays as encoded, and the
decoder's means are given to a classifier that was trained on the data's own labels (`features.classifier`):

    kept = mean_j mean_n mean_t [ value seen at z_j = t  equals  value seen in the row's own reconstruction ]

With `along`, j is the one coordinate whose means have the largest absolute rank correlation with that factor over all
rows (which of them is decided for each model: latents have no fixed order); without, all coordinates j that are active,
Var(means) > .01, or all if none is (of a model in stages, all of the first); `active` in the details is how many of the
moved ones are. A latent that the decoder ignores keeps everything: read the score with what moving
the latent changes, which is in the details (`moved`, the mean absolute change per pixel between the two ends).

`drawn` (msvae2020, appendix F) starts elsewhere: at one draw of each row's posterior. A GAN behind a first stage reads
no z from a row, its posterior there is its prior, and so each row gets a z of its own that stays while c moves; what a
decoder takes besides the code, as InfoGAN's noise, is drawn and held alike. A generator that draws one value only keeps
it always: `details` has the share of pairs of pictures of different rows that are seen alike (`chance`).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import DataError, SettingError, UsageError, unknown
from unbraid.latents import Normal
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import FeatureNetwork
from unbraid.metrics.generative.features.classifier import NAME, predicted
from unbraid.metrics.generative.features.feature_sets import CHUNK, chosen_network, decoded, prior_codes
from unbraid.metrics.intervals import score_mean

ACTIVE = 0.01
"""Variance of the means of a latent that carries something (burda2016)."""

FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (0, 1), "trial": {"samples": 32, "steps": 20}}


@metric("kept/classifier", reference="esmaeili2018", **FACTS)
def kept(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    along: str | None = None,
    span: float = 3.0,
    places: int = 7,
    samples: int = 500,
    steps: int | None = None,
) -> Score:
    """Share of pictures in which a classifier sees the same value of a factor (the first) while one latent moves."""
    _check(samples, places, span)
    name = factor or evaluation.dataset.factor_names[0]
    network = chosen_network(evaluation, NAME, steps=steps)
    moving, correlation = latents_along(evaluation, along)
    codes = evaluation.encode_means(evaluation.choose(samples))
    score = _kept(evaluation, "classifier", network, name, codes, moving, (span, places))
    return replace(score, details={**score.details, "correlation": correlation})


@metric("kept/drawn", reference="msvae2020", **FACTS)
def kept_drawn(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    block: str | None = None,
    span: float = 2.0,
    places: int = 7,
    samples: int = 500,
    steps: int | None = None,
) -> Score:
    """As kept/classifier, of pictures that are drawn: a posterior's draw and a generator's noise stay, a latent moves.

    Moved are the active latents, with `block` those of one block alone: `c` of a model in stages.
    """
    _check(samples, places, span)
    name = factor or evaluation.dataset.factor_names[0]
    if block is not None and block not in evaluation.space.blocks:
        raise unknown("block of latents", block, evaluation.space.blocks, error=SettingError)
    network = chosen_network(evaluation, NAME, steps=steps)
    moving, _ = latents_along(evaluation, None, block)
    positions = evaluation.choose(samples)
    codes, drawn = evaluation.draw_codes(positions), prior_codes(evaluation, len(positions))
    return _kept(evaluation, "drawn", network, name, codes, moving, (span, places), drawn)


def _check(samples: int, places: int, span: float) -> None:
    check_at_least(2, samples=samples, places=places)
    if not span > 0:
        raise SettingError(f"span must be above 0, not {span}.")


def _kept(
    evaluation: Evaluation,
    protocol: str,
    network: FeatureNetwork,
    name: str,
    codes: Tensor,
    moving: list[int],
    places: tuple[float, int],
    drawn: Tensor | None = None,
) -> Score:
    """The score of codes [rows, width] whose latents `moving` go, one at a time, to `places`: a span, and how many.

    What the decoder takes besides the code comes from `drawn`, or is in the middle of what it may be.
    """
    values = torch.linspace(-places[0], places[0], places[1], device=codes.device)
    own = predicted(network, pictures_of(evaluation, codes, drawn), name)
    same, change = [], []
    for latent in moving:
        pictures = [pictures_of(evaluation, moved_to(codes, latent, float(value)), drawn) for value in values]
        seen = torch.stack([predicted(network, each, name) for each in pictures])  # [places, rows]
        same.append((seen == own).double().mean(0))
        change.append(float((pictures[-1] - pictures[0]).abs().mean()))
    shares = torch.stack(same).cpu().numpy()  # [latents, rows]
    named = [evaluation.code_names[latent] for latent in moving]
    details = {
        "factor": name,
        "latents": dict(zip(named, shares.mean(1).tolist(), strict=True)),
        "moved": dict(zip(named, change, strict=True)),
        "active": int((evaluation.means[:, moving].double().var(0, correction=0) > ACTIVE).sum()),
        "chance": _alike(own),
        "network": dict(network.details),
    }
    rows = shares.mean(0)
    return score_mean("kept", protocol, rows, bounds=(0.0, 1.0), details=details)


def _alike(seen: Tensor) -> float:
    """Share of the pairs of different rows in which the same value is seen."""
    counts = seen.unique(return_counts=True)[1].double()
    return float((counts * (counts - 1)).sum() / (len(seen) * (len(seen) - 1)))


def latents_along(
    evaluation: Evaluation, along: str | None, block: str | None = None
) -> tuple[list[int], float | None]:
    """Normal coordinates, of all blocks or one, that are moved, and the rank correlation of one with a factor."""
    known = normal_coordinates(evaluation, block)
    means = evaluation.means[:, known].double().cpu().numpy()
    if along is None:
        active = [latent for latent, column in zip(known, means.T, strict=True) if column.var() > ACTIVE]
        return active or _of_first_stage(evaluation, known), None
    values = evaluation.choose_factors([along])[0][:, 0].cpu().numpy()
    found = [rank_correlation(column, values) for column in means.T]
    best = max(range(len(known)), key=lambda j: abs(found[j]))
    return [known[best]], found[best]


def _of_first_stage(evaluation: Evaluation, latents: list[int]) -> list[int]:
    """Those of some latents that a model in stages has from its first one; all of them where there are none."""
    width = 0 if evaluation.model.first is None else evaluation.model.first.space.width
    return [latent for latent in latents if latent < width] or latents


def normal_coordinates(evaluation: Evaluation, block: str | None = None) -> list[int]:
    """Coordinates of the code that belong to Normal blocks, or to one of them."""
    blocks = evaluation.space.blocks.items()
    kinds = [isinstance(b, Normal) and block in (None, name) for name, b in blocks for _ in range(b.width)]
    found = [column for column, normal in enumerate(kinds) if normal]
    if not found:
        raise UsageError("This score moves Normal latents, and this model has none.")
    return found


def rank_correlation(first: Any, second: Any) -> float:
    """Spearman's correlation; 0 where one of both does not vary."""
    from scipy.stats import spearmanr

    if first.min() == first.max() or second.min() == second.max():
        return 0.0
    return float(spearmanr(first, second).statistic)


def moved_to(codes: Tensor, latent: int, value: float) -> Tensor:
    """Codes in which one coordinate has a value."""
    moved = codes.clone()
    moved[:, latent] = value
    return moved


def pictures_of(evaluation: Evaluation, codes: Tensor, drawn: Tensor | None) -> Tensor:
    """What the decoder makes of codes."""
    whole = codes if drawn is None else evaluation.model.complete_code(codes, drawn)
    made = torch.cat([decoded(evaluation, part) for part in whole.split(CHUNK)])
    if not bool(made.isfinite().all()):
        raise DataError("The decoder returns NaN or infinite values.")
    return made
