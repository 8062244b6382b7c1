r"""How good and how varied are images that a model makes of one modality from another?

Given x_a, c is drawn from q(c|x_a) and s_m from its prior, `draws` times; a classifier of modality m trained on real
rows (`modality_classifiers`) gives features f of the decoded images. Means over all pairs (a, m) of image modalities:

    cross/frechet   Frechet distance of the features of one drawn image per row from those of real images of m
    cross/spread    sum of variances of f over the draws of one condition, over that of real images of the same class

A decoder that ignores its draws has a spread of 0, one as varied as the data 1. Noise is varied, too, and far from the
data, so neither number means much without the other and without coherence.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import FeatureNetwork
from unbraid.metrics.generative.frechet import frechet
from unbraid.metrics.intervals import no_interval
from unbraid.metrics.multimodal.conditional_draws import decode_modality, encode_in_batches, infer_shared_codes
from unbraid.metrics.multimodal.modality_classifiers import get_factor_classifiers
from unbraid.models import as_multimodal

FACTS: dict[str, Any] = {
    "reference": "daunhawer2019",
    "needs": ("modalities", "factors"),
    "bounds": (0, float("inf")),
    "trial": {"samples": 16, "draws": 3, "steps": 20},
}


class CrossFeatures(NamedTuple):
    """Features of one modality: of real rows [rows, width], and drawn from each other one [rows, sources, draws, …]."""

    real: Tensor
    drawn: Tensor
    classes: Tensor


@metric("cross/frechet", **FACTS)
def cross_frechet(
    evaluation: Evaluation, *, samples: int = 1_000, draws: int = 8, steps: int | None = None, factor: str | None = None
) -> Score:
    """Frechet distance of a modality made from another one from the real one, mean over all pairs."""
    pairs = _compute_features(evaluation, samples, draws, steps, factor)
    found = {
        f"{source} to {target}": frechet(each.real, each.drawn[:, k, 0], network="classifier").value
        for target, (sources, each) in pairs.items()
        for k, source in enumerate(sources)
    }
    return _mean_score("frechet", found, samples)


@metric("cross/spread", **FACTS)
def cross_spread(
    evaluation: Evaluation, *, samples: int = 1_000, draws: int = 8, steps: int | None = None, factor: str | None = None
) -> Score:
    """Variance over draws of a modality made from another one, as a share of that of real images of one class."""
    found = {}
    for target, (sources, each) in _compute_features(evaluation, samples, draws, steps, factor).items():
        inside = torch.stack([each.real[each.classes == value].var(0).sum() for value in _frequent(each.classes)])
        for k, source in enumerate(sources):
            found[f"{source} to {target}"] = float(each.drawn[:, k].var(1).sum(-1).mean() / inside.mean())
    return _mean_score("spread", found, samples)


def _mean_score(protocol: str, found: dict[str, float], samples: int) -> Score:
    value, why = sum(found.values()) / len(found), no_interval("drawing all images again takes too long")
    return Score("cross", protocol, value, samples, details={"pairs": found}, covers=why)


def _frequent(classes: Tensor) -> list[int]:
    """Return the classes with at least two rows, which have a variance."""
    values, counts = classes.unique(return_counts=True)
    frequent = values[counts > 1].tolist()
    if not frequent:
        raise DataError("No two of these rows share a value of the common factor; score more rows with samples=….")
    return frequent


def _compute_features(
    evaluation: Evaluation, samples: int, draws: int, steps: int | None, factor: str | None
) -> dict[str, tuple[list[str], CrossFeatures]]:
    """Return sources and features of every image modality; both scores share them."""
    check_at_least(2, samples=samples, draws=draws)
    key = ("cross", samples, draws, steps, factor)
    return evaluation.compute_once(key, lambda: _compute(evaluation, samples, draws, steps, factor))


def _compute(
    evaluation: Evaluation, samples: int, draws: int, steps: int | None, factor: str | None
) -> dict[str, tuple[list[str], CrossFeatures]]:
    model, data = as_multimodal(evaluation.model), evaluation.dataset
    _, values, classifiers = get_factor_classifiers(evaluation, factor, steps)
    images = [name for name, part in data.modalities.items() if len(part.shape) == 3]
    if len(images) < 2:
        raise DataError(f"{data.name} has {len(images)} modalities of images, and this score needs two.")
    positions, pairs = evaluation.choose(samples), {}
    for target in images:
        sources = [name for name in images if name != target]
        sets = torch.stack([torch.tensor([n == s for n in model.modalities]) for s in sources]).to(positions.device)
        seeds, network = noise.seed_tensor(evaluation.seed, device=positions.device), classifiers[target].network
        drawn = []
        for number, _, posteriors in encode_in_batches(evaluation, model, positions, len(sets) * draws, "draws"):
            c = infer_shared_codes(model, posteriors, sets, draws, seeds, number, "drawn")
            expected = decode_modality(model, target, c.flatten(0, 2), seeds, number)
            drawn.append(_apply(network, expected).unflatten(0, (-1, len(sets), draws)))
        real = _apply(network, data.modalities[target].expected(evaluation.rows[positions]))
        pairs[target] = sources, CrossFeatures(real, torch.cat(drawn), values[positions])
    return pairs


def _apply(network: FeatureNetwork, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part) for part in images.split(max(network.batch, 16))]).double()
