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
from unbraid.metrics.generative.features.base import FeatureNetwork, build
from unbraid.progress import progress

CHUNK = 256
"""Observations that are decoded at a time."""

LEARNED = ("classifier",)
LAST = 8
"""How many networks that have learned are kept: one for each of a few modalities."""

_KEPT: dict[tuple[Any, ...], FeatureNetwork] = {}

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


def compare(
    evaluation: Evaluation,
    network: str,
    samples: int,
    measure: Callable[[Tensor, Tensor, bool], Sequence[Score]],
    **settings: Any,
) -> list[Score]:
    """Return the scores of reconstructions and of samples.

    `measure` gets the originals' features, the others', and whether rows belong together.
    """
    sets, scores = feature_sets(evaluation, network, samples, **settings), []
    for part, features in (("reconstructions", sets.reconstructions), ("samples", sets.samples)):
        for score in measure(sets.originals, features, part == "reconstructions"):
            details = {**score.details, "network": dict(sets.network.details)}
            scores.append(replace(score, part=f"{part}-{score.part}" if score.part else part, details=details))
    return scores


def feature_sets(evaluation: Evaluation, network: str, samples: int, **settings: Any) -> FeatureSets:
    """Features of `samples` rows (all if there are fewer), computed once for all scores that ask for the same ones."""
    check_at_least(2, samples=samples)
    count = min(samples, len(evaluation))
    own = tuple(sorted(settings.items()))
    return evaluation.compute_once(
        ("features", network, own, count), lambda: _make(evaluation, network, count, settings)
    )


def chosen_network(evaluation: Evaluation, network: str, **settings: Any) -> FeatureNetwork:
    """A feature network for this evaluation's data, made once."""
    key = ("feature network", network, tuple(sorted(settings.items())))
    return evaluation.compute_once(key, lambda: _network(evaluation, network, settings))


def _network(evaluation: Evaluation, name: str, settings: dict[str, Any]) -> FeatureNetwork:
    dataset, rows, seed = evaluation.dataset, evaluation.rows, evaluation.seed
    return (learned if name in LEARNED else build)(name, dataset, rows, seed, settings)


def learned(name: str, dataset: FactorDataset, rows: Tensor, seed: int, settings: dict[str, Any]) -> FeatureNetwork:
    """A network that learns does so once for all models on the same rows of the same data; the last few are kept."""
    seen = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()
    key = (name, dataset.content_hash(), str(dataset.device), seen, seed, *sorted(settings.items()))
    if key not in _KEPT:
        made = build(name, dataset, rows, seed, settings)
        while len(_KEPT) >= LAST:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = made
    return _KEPT[key]


def reconstructed(evaluation: Evaluation, positions: Tensor) -> Tensor:
    """Decoder means [n, *shape] of the posterior means of rows."""
    return decoded(evaluation, evaluation.encode_means(positions))


def decoded(evaluation: Evaluation, codes: Tensor) -> Tensor:
    """Decoder means [n, *shape] of codes [n, width]."""
    with torch.no_grad():
        return evaluation.model.likelihood.mean(evaluation.model.decode(codes))


def prior_codes(evaluation: Evaluation, count: int) -> Tensor:
    """What the decoder takes for `count` draws from the model, fixed by the evaluation's seed."""
    seeds = noise.seed_tensor(evaluation.seed, device=evaluation.dataset.device)
    drawn = noise.draw(evaluation.model.prior_needs(count), seeds, step=1)
    return evaluation.model.prior_codes({name: tensor[0] for name, tensor in drawn.items()})


def _make(evaluation: Evaluation, name: str, count: int, settings: dict[str, Any]) -> FeatureSets:
    network = chosen_network(evaluation, name, **settings)
    model, positions = evaluation.model, evaluation.choose(count)
    codes = prior_codes(evaluation, count)
    makers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "originals": lambda part, _: evaluation.dataset.images(evaluation.rows[part]),
        "reconstructions": lambda part, _: reconstructed(evaluation, part),
        "samples": lambda _, code: model.likelihood.mean(model.decode(code)),
    }
    made: dict[str, list[Tensor]] = {key: [] for key in makers}
    with torch.no_grad(), progress(f"features of {name}", 3 * count) as bar:
        for part, code in zip(positions.split(CHUNK), codes.split(CHUNK), strict=True):
            for key, make in makers.items():
                for piece in make(part, code).split(max(network.batch, 16)):
                    made[key].append(network(piece))
                    bar.advance(len(piece))
    return FeatureSets(network, *(torch.cat(made[key]) for key in ("originals", "reconstructions", "samples")))
