r"""Coherence: does a modality generated from others show the factor they share (daunhawer2019, figure 3; shi2019)?

For every non-empty set A of modalities and every modality m outside it, c is drawn from q(c|x_A) and s_m from its
prior, and a classifier of modality m (`modality_classifiers`) predicts the factor that all modalities share:

    coherence(A -> m) = mean_n [ value predicted from E[x_m|c, s_m]  equals  the row's value ]

`given-k` is the mean over all pairs with |A| = k, `m1-to-m2` the value of a single pair with |A| = 1; the details hold
every pair. `joint` (sutter2021) uses no data: c and all s_m come from the prior, and it is the share of draws for which
the classifiers of all modalities agree.

**Ceiling.** About the classifiers' accuracy on real rows, in the details. **Chance** is the share of the most frequent
value; for `joint`, the agreement of modalities drawn independently (`apart`). A model that always draws the same value
has a `joint` of 1, and an `apart` of 1.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError
from unbraid.latents.fusion import subsets
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.generative.features.base import choose_batch_size
from unbraid.metrics.generative.features.feature_sets import draw_prior_codes
from unbraid.metrics.intervals import score_mean
from unbraid.metrics.multimodal.conditional_draws import (
    DECODE_BATCHES,
    Shared,
    decode_modality,
    encode_in_batches,
    infer_shared_codes,
)
from unbraid.metrics.multimodal.modality_classifiers import FactorClassifiers, get_factor_classifiers
from unbraid.models import as_multimodal

BOUNDS = (0.0, 1.0)


@metric(
    "coherence/classifier",
    reference="daunhawer2019",
    needs=("modalities", "factors"),
    bounds=(0, 1),
    trial={"samples": 32, "steps": 20},
)
def coherence(
    evaluation: Evaluation,
    *,
    factor: str | None = None,
    samples: int = 1_000,
    shared: Shared = "drawn",
    steps: int | None = None,
) -> list[Score]:
    """Share of modalities generated from others, for each set of them, that show the shared factor to a classifier."""
    model = as_multimodal(evaluation.model)
    check_at_least(2, samples=samples)
    if len(model.modalities) < 2:
        raise UsageError("coherence/classifier generates one modality from others, and this model has only one.")
    classifiers = get_factor_classifiers(evaluation, factor, steps)
    positions = evaluation.choose(samples)
    correct = _score_pairs(evaluation, classifiers, positions, shared)
    details: dict[str, Any] = {"factor": classifiers.factor}
    details["classifiers"] = {name: one.details for name, one in classifiers.of.items()}
    joint = _score_joint(evaluation, classifiers, samples, details)
    chance = float(classifiers.values[positions].bincount().max() / len(positions))
    return [*_average_pairs(model.modalities, correct, {**details, "shared": shared, "chance": chance}), joint]


def _score_pairs(
    evaluation: Evaluation, classifiers: FactorClassifiers, positions: Tensor, shared: Shared
) -> np.ndarray:
    """Return 1 for correct and 0 for wrong predictions [rows, sets, M].

    NaN stands for modalities inside the set, and for rows that lack a modality of the set.
    """
    model = as_multimodal(evaluation.model)
    sets = subsets(len(model.modalities), positions.device)  # [S, M]
    seeds, parts = noise.seed_tensor(evaluation.seed, device=positions.device), []
    without = [(~sets[:, m]).nonzero().squeeze(-1) for m in range(len(model.modalities))]
    for number, part, posteriors in encode_in_batches(evaluation, model, positions, len(without[0]), "coherence"):
        c = infer_shared_codes(model, posteriors, sets, 1, seeds, number, shared).squeeze(2)  # [rows, S, D]
        correct = torch.full((len(part), *sets.shape), torch.nan, device=c.device)
        for m, (name, classifier) in enumerate(classifiers.of.items()):
            expected = decode_modality(model, name, c[:, without[m]].flatten(0, 1), seeds, number)
            predicted = classifier.predict(expected, [classifiers.factor]).view(len(part), -1)
            correct[:, without[m], m] = (predicted == classifiers.values[part, None]).float()
        correct[(sets & ~posteriors.present.unsqueeze(1)).any(-1)] = torch.nan
        parts.append(correct)
    return torch.cat(parts).cpu().double().numpy()


def _average_pairs(names: tuple[str, ...], correct: np.ndarray, details: dict[str, Any]) -> list[Score]:
    """Return the means by the size of a set, then the scores of one modality from another."""
    sets = subsets(len(names)).numpy()
    sizes, scores = sets.sum(1), []
    pairs = {
        f"{'+'.join(n for n, inside in zip(names, row, strict=True) if inside)}-to-{names[m]}": (s, m)
        for s, row in enumerate(sets)
        for m in np.flatnonzero(~row)
    }
    for size in range(1, len(names)):
        chosen = {pair: correct[:, s, m] for pair, (s, m) in pairs.items() if sizes[s] == size}
        shares = {pair: float(np.nanmean(c)) for pair, c in chosen.items() if not np.isnan(c).all()}
        table = np.stack(list(chosen.values()), 1)
        by_row = np.nanmean(table[~np.isnan(table).all(1)], 1)
        scores += _average_rows(by_row, f"given-{size}", {**details, "pairs": shares})
    for pair, (s, m) in pairs.items():
        if sizes[s] == 1:
            scores += _average_rows(correct[:, s, m], pair, details)
    return scores


def _average_rows(values: np.ndarray, part: str, details: dict[str, Any]) -> list[Score]:
    """Return the mean over rows that are not NaN, or nothing if there are none."""
    known = values[~np.isnan(values)]
    return [score_mean("coherence", "classifier", known, part, BOUNDS, details)] if len(known) else []


def _score_joint(
    evaluation: Evaluation, classifiers: FactorClassifiers, samples: int, details: dict[str, Any]
) -> Score:
    """Return the agreement of all modalities drawn from the prior."""
    model, factor = as_multimodal(evaluation.model), classifiers.factor
    codes, parts = draw_prior_codes(evaluation, samples), []
    with torch.no_grad():
        for part in codes.split(choose_batch_size(codes.device, *DECODE_BATCHES)):
            expected = model.expected(part)
            parts.append(torch.cat([one.predict(expected[name], [factor]) for name, one in classifiers.of.items()], 1))
    predicted = torch.cat(parts).cpu()  # [samples, M]
    same = (predicted == predicted[:, :1]).all(1).double().numpy()
    size = evaluation.dataset.sizes[evaluation.dataset.factor_position(factor)]
    shares = torch.stack([column.bincount(minlength=size) for column in predicted.T]).double() / samples
    own = {"apart": float(shares.prod(0).sum()), "seen": dict(zip(model.modalities, shares.tolist(), strict=True))}
    return score_mean("coherence", "classifier", same, "joint", BOUNDS, {**details, **own})
