"""Features of originals, of their reconstructions and of samples from the prior.

A reconstruction is the decoder's mean at the posterior mean; a sample is the decoder's mean at a draw from the prior.
Neither has pixel noise.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score
from unbraid.metrics.generative.features.base import FeatureNetwork, build_network
from unbraid.metrics.generative.features.classifier import get_stored
from unbraid.progress import progress

DECODE_BATCH = 256
MAX_CACHED_NETWORKS = 8
"""Trained networks to keep in memory: one for each of a few modalities."""

_TRAINED_NETWORKS: dict[tuple[Any, ...], FeatureNetwork] = {}

EFFICIENTNET: dict[str, Any] = {"needs": ("images",), "costly": True, "trial": {"samples": 16}}
INCEPTION: dict[str, Any] = {"needs": ("images", "weights"), "costly": True}
CLASSIFIER: dict[str, Any] = {"needs": ("factors",), "trial": {"samples": 400, "steps": 20}}
"""Facts of metrics that compare features of these networks."""


class FeatureSets(NamedTuple):
    """Features [rows, width] of originals, of their reconstructions in the same order, and of as many samples."""

    network: FeatureNetwork
    originals: Tensor
    reconstructions: Tensor
    samples: Tensor


def compare_features(
    evaluation: Evaluation,
    network: str,
    samples: int,
    measure: Callable[..., Score | Sequence[Score]],
    **settings: Any,
) -> list[Score]:
    """Return the scores of reconstructions and of prior samples against `samples` originals.

    `measure(originals, others, network=…, paired=…)` gets features; reconstructions are paired with their originals.
    `settings` are those of the feature network.
    """
    sets, scores = compute_feature_sets(evaluation, network, samples, **settings), []
    for part, features in (("reconstructions", sets.reconstructions), ("samples", sets.samples)):
        measured = measure(sets.originals, features, network=network, paired=part == "reconstructions")
        for score in [measured] if isinstance(measured, Score) else measured:
            details = {**score.details, "network": dict(sets.network.details)}
            scores.append(replace(score, part=f"{part}-{score.part}" if score.part else part, details=details))
    return scores


def compute_feature_sets(evaluation: Evaluation, network: str, samples: int, **settings: Any) -> FeatureSets:
    """Return features of `samples` rows (all if there are fewer); scores that need the same ones share them."""
    check_at_least(2, samples=samples)
    count = min(samples, len(evaluation))
    key = ("features", network, tuple(sorted(settings.items())), count)
    return evaluation.compute_once(key, lambda: _compute_feature_sets(evaluation, network, count, settings))


def get_network(evaluation: Evaluation, network: str, **settings: Any) -> FeatureNetwork:
    """Return the feature network for this evaluation's data, built at the first call."""
    build = get_trained_network if network == "classifier" else build_network
    key = ("feature network", network, tuple(sorted(settings.items())))
    return evaluation.compute_once(
        key, lambda: build(network, evaluation.dataset, evaluation.rows, evaluation.seed, settings)
    )


def get_trained_network(
    name: str, dataset: FactorDataset, rows: Tensor, seed: int, settings: dict[str, Any]
) -> FeatureNetwork:
    """Return a network trained on these rows; all models share it, in memory and in the user's cache."""
    digest = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
    key = (name, dataset.content_hash(), str(dataset.device), digest, seed, *sorted(settings.items()))
    if key not in _TRAINED_NETWORKS:
        train = partial(build_network, name, dataset, rows, seed, settings)
        network = get_stored(key, settings.get("steps"), dataset, train)
        while len(_TRAINED_NETWORKS) >= MAX_CACHED_NETWORKS:
            _TRAINED_NETWORKS.pop(next(iter(_TRAINED_NETWORKS)))
        _TRAINED_NETWORKS[key] = network
    return _TRAINED_NETWORKS[key]


def reconstruct(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Return the decoder means [n, *shape] at the posterior means of rows."""
    return decode_means(evaluation, evaluation.encode_means(positions))


def find_pixel_errors(evaluation: Evaluation) -> Tensor:
    """Return the table [rows, 2] of mean absolute and squared errors per pixel, NaN where a row is not decoded yet."""
    empty = torch.full((len(evaluation), 2), torch.nan, dtype=torch.float64, device=evaluation.rows.device)
    return evaluation.compute_once("pixel errors", lambda: empty)


def note_pixel_errors(evaluation: Evaluation, positions: Tensor, originals: Tensor, decoded: Tensor) -> None:
    """Keep the errors of reconstructions, so that no other score has to decode these rows."""
    difference = (originals - decoded).flatten(1).double()
    both = torch.stack([difference.abs().mean(1), difference.square().mean(1)], dim=1)
    find_pixel_errors(evaluation)[positions] = both


def decode_means(evaluation: Evaluation, codes: Tensor) -> Tensor:
    """Return the decoder means [n, *shape] of codes [n, width]."""
    model, parts = evaluation.model, codes.split(min(evaluation.pass_size, 1024))
    with torch.no_grad():
        return torch.cat([model.likelihood.mean(model.decode(part)) for part in parts])


def draw_prior_codes(evaluation: Evaluation, count: int, step: int = 1) -> Tensor:
    """Return decoder inputs for `count` draws from the prior, fixed by the evaluation's seed."""
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    drawn = noise.draw(evaluation.model.prior_needs(count), seeds, step)
    return evaluation.model.prior_codes({name: tensor[0] for name, tensor in drawn.items()})


def _compute_feature_sets(evaluation: Evaluation, name: str, count: int, settings: dict[str, Any]) -> FeatureSets:
    network = get_network(evaluation, name, **settings)
    positions, codes = evaluation.choose(count), draw_prior_codes(evaluation, count)
    features: tuple[list[Tensor], ...] = ([], [], [])
    with torch.no_grad(), progress(f"features of {name}", 3 * count) as bar:
        for part, code in zip(positions.split(DECODE_BATCH), codes.split(DECODE_BATCH), strict=True):
            originals = evaluation.dataset.images(evaluation.rows[part])
            images = (originals, reconstruct(evaluation, part), decode_means(evaluation, code))
            note_pixel_errors(evaluation, part, *images[:2])
            for collected, batch in zip(features, images, strict=True):
                for piece in batch.split(max(network.batch, 16)):
                    collected.append(network(piece))
                    bar.advance(len(piece))
    return FeatureSets(network, *(torch.cat(collected) for collected in features))
