r"""Preservation of a factor's value in images while one latent moves (esmaeili2018, figure 7).

Rows are encoded, one Normal coordinate j is set to values t in [-span, span] while the others stay as encoded, and a
classifier trained on the data's labels (`features.classifier`) predicts the factor from the decoder's means:

    kept = mean_j mean_n mean_t [ prediction at z_j = t  equals  prediction for the row's reconstruction ]

With `along`, j is the coordinate whose means have the largest absolute rank correlation with that factor over all rows.
Without it, j runs over the active coordinates, Var(means) > .01, or over all if none is active (in a staged model, all
of the first stage); the details hold the number of active ones among them. A latent that the decoder ignores preserves
everything, so the details also hold the mean absolute change per pixel from -span to span (`moved`, of 50 rows).

Most of the chance is in the rows, not in the places t. So if many latents move, each row visits some of the places for
each latent (`visits`), evenly spread and shifted from row to row and from latent to latent: on average the score is
that of all places. The default is about 14 pictures per row. With ten latents and two of seven places its error is 4 to
5% larger (`docs/scores.md`), and the time falls to two sevenths.

`drawn` (msvae2020, appendix F) starts at one draw of each row's posterior instead. A GAN after a first stage does not
encode z, so each row gets a draw of z from the prior that stays while c moves; the decoder's other inputs, as InfoGAN's
noise, are drawn and held in the same way. A generator that always draws the same value preserves it, so the details
hold the share of pairs of different rows with equal predictions (`chance`).
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unbraid.errors import DataError, SettingError, UsageError, unknown
from unbraid.latents import Normal
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import FeatureNetwork
from unbraid.metrics.generative.features.classifier import NAME, predict_factors
from unbraid.metrics.generative.features.feature_sets import DECODE_BATCH, decode_means, draw_prior_codes, get_network
from unbraid.metrics.intervals import score_mean

MIN_ACTIVE_VARIANCE = 0.01
"""Variance of the posterior means of an active latent (burda2016)."""

PICTURES_PER_ROW = 14
"""Pictures of a row, over all latents, beyond which its share hardly becomes more certain."""

ROWS_OF_CHANGE = 50
"""Rows whose change of pixels is measured."""

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
    visits: int | None = None,
    steps: int | None = None,
) -> Score:
    """Share of images for which a classifier's prediction of a factor (the first) stays while one latent moves."""
    _check_settings(samples, places, span, visits)
    name = factor or evaluation.dataset.factor_names[0]
    network = get_network(evaluation, NAME, steps=steps)
    moving, correlation = choose_latents(evaluation, along)
    codes = evaluation.encode_means(evaluation.choose(samples))
    score = _score(evaluation, "classifier", network, name, codes, moving, (span, places, visits))
    return replace(score, details={**score.details, "correlation": correlation})


@metric("kept/drawn", reference="msvae2020", **FACTS)
def kept_drawn(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    block: str | None = None,
    first_stage: bool = False,
    span: float = 2.0,
    places: int = 7,
    samples: int = 500,
    visits: int | None = None,
    steps: int | None = None,
) -> Score:
    """Share as in kept/classifier, from a posterior draw per row and with the generator's noise held fixed.

    The active latents move: all, those of one `block`, or those of the `first_stage`, which are all of a model
    without stages.
    """
    _check_settings(samples, places, span, visits)
    name = factor or evaluation.dataset.factor_names[0]
    if block is not None and block not in evaluation.space.blocks:
        raise unknown("block of latents", block, evaluation.space.blocks, error=SettingError)
    network = get_network(evaluation, NAME, steps=steps)
    moving, _ = choose_latents(evaluation, None, block, first_stage)
    positions = evaluation.choose(samples)
    codes, drawn = evaluation.draw_codes(positions), draw_prior_codes(evaluation, len(positions))
    return _score(evaluation, "drawn", network, name, codes, moving, (span, places, visits), drawn)


def _check_settings(samples: int, places: int, span: float, visits: int | None) -> None:
    check_at_least(2, samples=samples, places=places)
    if visits is not None and not 1 <= visits <= places:
        raise SettingError(f"visits must be from 1 to {places}, the number of places, not {visits}.")
    if not span > 0:
        raise SettingError(f"span must be above 0, not {span}.")


def _score(
    evaluation: Evaluation,
    protocol: str,
    network: FeatureNetwork,
    name: str,
    codes: Tensor,
    moving: list[int],
    places: tuple[float, int, int | None],
    drawn: Tensor | None = None,
) -> Score:
    """Return the score of codes [rows, width] whose latents `moving` take, one at a time, the values of `places`.

    `places` is a span, a number of values, and how many of them a row visits. `drawn` holds the decoder's other inputs;
    without it they are central.
    """
    values = torch.linspace(-places[0], places[0], places[1], device=codes.device)
    unmoved = predict_factors(network, decode_pictures(evaluation, codes, drawn), [name])
    visits = places[2] or min(places[1], math.ceil(PICTURES_PER_ROW / len(moving)))
    same, change = [], []
    for number, latent in enumerate(moving):
        visited = choose_places(len(codes), places[1], visits, number).to(codes.device)  # [rows, visits]
        moved = [set_latent(codes, latent, values[column]) for column in visited.T]
        images = [decode_pictures(evaluation, each, drawn) for each in moved]
        predicted = torch.cat([predict_factors(network, each, [name]) for each in images], 1)  # [rows, visits]
        same.append((predicted == unmoved).double().mean(1))
        change.append(_measure_change(evaluation, codes, latent, values, drawn))
    shares = torch.stack(same).cpu().numpy()  # [latents, rows]
    latents = [evaluation.code_names[latent] for latent in moving]
    counts, rows = unmoved.unique(return_counts=True)[1].double(), len(unmoved)
    details = {
        "factor": name,
        "latents": dict(zip(latents, shares.mean(1).tolist(), strict=True)),
        "moved": dict(zip(latents, change, strict=True)),
        "active": int((evaluation.means[:, moving].double().var(0, correction=0) > MIN_ACTIVE_VARIANCE).sum()),
        "visits": visits,
        "chance": float((counts * (counts - 1)).sum() / (rows * (rows - 1))),
        "network": dict(network.details),
    }
    return score_mean("kept", protocol, shares.mean(0), bounds=(0.0, 1.0), details=details)


def choose_places(rows: int, places: int, visits: int, shift: int) -> Tensor:
    """Return the places that each row visits [rows, visits]; over `places` rows in turn, each is visited as often."""
    apart = torch.arange(visits) * places // visits
    return (torch.arange(rows)[:, None] + shift + apart) % places


def _measure_change(evaluation: Evaluation, codes: Tensor, latent: int, values: Tensor, drawn: Tensor | None) -> float:
    """Return the mean absolute change per pixel between the first and the last value of a latent."""
    few, others = codes[:ROWS_OF_CHANGE], None if drawn is None else drawn[:ROWS_OF_CHANGE]
    first, last = (decode_pictures(evaluation, set_latent(few, latent, values[end]), others) for end in (0, -1))
    return float((last - first).abs().mean())


def choose_latents(
    evaluation: Evaluation, along: str | None, block: str | None = None, first_stage: bool = False
) -> tuple[list[int], float | None]:
    """Return the Normal coordinates to move, and the rank correlation of the one that `along` picks."""
    normal = find_normal_coordinates(evaluation, block)
    width = 0 if evaluation.model.first is None else evaluation.model.first.space.width
    if first_stage and width:
        normal = [j for j in normal if j < width]
    means = evaluation.means[:, normal].double().cpu().numpy()
    if along is None:
        active = [j for j, column in zip(normal, means.T, strict=True) if column.var() > MIN_ACTIVE_VARIANCE]
        return active or [j for j in normal if j < width] or normal, None
    values = evaluation.choose_factors([along])[0][:, 0].cpu().numpy()
    correlations = [rank_correlation(column, values) for column in means.T]
    best = max(range(len(normal)), key=lambda j: abs(correlations[j]))
    return [normal[best]], correlations[best]


def find_normal_coordinates(evaluation: Evaluation, block: str | None = None) -> list[int]:
    """Return the code's coordinates in Normal blocks, or in one of them."""
    blocks = evaluation.space.blocks.items()
    is_normal = [isinstance(b, Normal) and block in (None, name) for name, b in blocks for _ in range(b.width)]
    coordinates = [column for column, normal in enumerate(is_normal) if normal]
    if not coordinates:
        raise UsageError("This score moves Normal latents, and this model has none.")
    return coordinates


def rank_correlation(first: Any, second: Any) -> float:
    """Return Spearman's correlation, or 0 if either does not vary."""
    from scipy.stats import spearmanr

    if first.min() == first.max() or second.min() == second.max():
        return 0.0
    return float(spearmanr(first, second).statistic)


def set_latent(codes: Tensor, latent: int, value: float | Tensor) -> Tensor:
    """Return a copy of codes [rows, width] with one coordinate set to a value, or to one of each row."""
    moved = codes.clone()
    moved[:, latent] = value
    return moved


def decode_pictures(evaluation: Evaluation, codes: Tensor, drawn: Tensor | None) -> Tensor:
    """Return the decoder means of codes [rows, width], completed by the other inputs in `drawn`."""
    inputs = codes if drawn is None else evaluation.model.complete_code(codes, drawn)
    images = torch.cat([decode_means(evaluation, part) for part in inputs.split(DECODE_BATCH)])
    if not bool(images.isfinite().all()):
        raise DataError("The decoder returns NaN or infinite values.")
    return images
