"""What a model makes, and its features: originals, their reconstructions and samples from the prior.

A reconstruction is the decoder's mean of a posterior's mean; a sample is the decoder's mean of a code drawn from the
prior. Neither has pixel noise added.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score
from unbraid.metrics.generative.features.base import FeatureNetwork, build_network
from unbraid.progress import progress

DECODE_BATCH = 256
"""Observations that are decoded at a time."""

LEARNED = ("classifier",)
MAX_CACHED_NETWORKS = 8
"""How many networks that have learned are kept: one for each of a few modalities."""

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
    measure: Callable[[Tensor, Tensor, bool], Sequence[Score]],
    **settings: Any,
) -> list[Score]:
    """Return the scores of reconstructions and of samples.

    `measure` gets the originals' features, the others', and whether rows belong together.
    """
    sets, scores = compute_feature_sets(evaluation, network, samples, **settings), []
    for part, features in (("reconstructions", sets.reconstructions), ("samples", sets.samples)):
        for score in measure(sets.originals, features, part == "reconstructions"):
            details = {**score.details, "network": dict(sets.network.details)}
            scores.append(replace(score, part=f"{part}-{score.part}" if score.part else part, details=details))
    return scores


def compute_feature_sets(evaluation: Evaluation, network: str, samples: int, **settings: Any) -> FeatureSets:
    """Features of `samples` rows (all if there are fewer), computed once for all scores that ask for the same ones."""
    check_at_least(2, samples=samples)
    count = min(samples, len(evaluation))
    own = tuple(sorted(settings.items()))
    return evaluation.once(("features", network, own, count), lambda: _make(evaluation, network, count, settings))


def get_network(evaluation: Evaluation, network: str, **settings: Any) -> FeatureNetwork:
    """A feature network for this evaluation's data, made once."""
    key = ("feature network", network, tuple(sorted(settings.items())))
    return evaluation.once(key, lambda: _network(evaluation, network, settings))


def _network(evaluation: Evaluation, name: str, settings: dict[str, Any]) -> FeatureNetwork:
    dataset, rows, seed = evaluation.dataset, evaluation.rows, evaluation.seed
    return (get_trained_network if name in LEARNED else build_network)(name, dataset, rows, seed, settings)


def get_trained_network(
    name: str, dataset: FactorDataset, rows: Tensor, seed: int, settings: dict[str, Any]
) -> FeatureNetwork:
    """A network that learns does so once for all models on the same rows of the same data; the last few are kept."""
    seen = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
    key = (name, dataset.content_hash(), str(dataset.device), seen, seed, *sorted(settings.items()))
    if key not in _TRAINED_NETWORKS:
        made = build_network(name, dataset, rows, seed, settings)
        while len(_TRAINED_NETWORKS) >= MAX_CACHED_NETWORKS:
            _TRAINED_NETWORKS.pop(next(iter(_TRAINED_NETWORKS)))
        _TRAINED_NETWORKS[key] = made
    return _TRAINED_NETWORKS[key]


def reconstruct(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Decoder means [n, *shape] of the posterior means of rows."""
    return decode_means(evaluation, evaluation.means_at(positions))


def decode_means(evaluation: Evaluation, codes: Tensor) -> Tensor:
    """Decoder means [n, *shape] of codes [n, width]."""
    with torch.no_grad():
        return evaluation.model.likelihood.mean(evaluation.model.decode(codes))


def draw_prior_codes(evaluation: Evaluation, count: int) -> Tensor:
    """What the decoder takes for `count` draws from the model, fixed by the evaluation's seed."""
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    drawn = noise.draw(evaluation.model.prior_needs(count), seeds, step=1)
    return evaluation.model.prior_codes({name: tensor[0] for name, tensor in drawn.items()})


def _make(evaluation: Evaluation, name: str, count: int, settings: dict[str, Any]) -> FeatureSets:
    network = get_network(evaluation, name, **settings)
    model, positions = evaluation.model, evaluation.choose(count)
    codes = draw_prior_codes(evaluation, count)
    makers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "originals": lambda part, _: evaluation.dataset.images(evaluation.rows[part]),
        "reconstructions": lambda part, _: reconstruct(evaluation, part),
        "samples": lambda _, code: model.likelihood.mean(model.decode(code)),
    }
    made: dict[str, list[Tensor]] = {key: [] for key in makers}
    with torch.no_grad(), progress(f"features of {name}", 3 * count) as bar:
        for part, code in zip(positions.split(DECODE_BATCH), codes.split(DECODE_BATCH), strict=True):
            for key, make in makers.items():
                for piece in make(part, code).split(max(network.batch, 16)):
                    made[key].append(network(piece))
                    bar.advance(len(piece))
    return FeatureSets(network, *(torch.cat(made[key]) for key in ("originals", "reconstructions", "samples")))
