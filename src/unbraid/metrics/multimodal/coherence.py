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
from unbraid.metrics.multimodal.modality_classifiers import (
    ModalityClassifier,
    choose_shared_factor,
    get_modality_classifier,
)
from unbraid.models import MultimodalModel, as_multimodal

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
    name, values = choose_shared_factor(evaluation, factor)
    classifiers = {each: get_modality_classifier(evaluation, each, steps) for each in model.modalities}
    positions = evaluation.choose(samples)
    correct = _score_pairs(evaluation, model, classifiers, name, values, positions, shared)
    chance = float(values[positions].bincount().max() / len(positions))
    details: dict[str, Any] = {"factor": name, "shared": shared, "chance": chance}
    details["classifiers"] = {each: one.details for each, one in classifiers.items()}
    conditional = _average_pairs(model.modalities, correct, details)
    return [*conditional, _score_joint(evaluation, model, classifiers, name, samples, details)]


def _score_pairs(
    evaluation: Evaluation,
    model: MultimodalModel,
    classifiers: dict[str, ModalityClassifier],
    factor: str,
    values: Tensor,
    positions: Tensor,
    shared: Shared,
) -> np.ndarray:
    """Return 1 for correct and 0 for wrong predictions [rows, sets, M].

    NaN stands for modalities inside the set, and for rows that lack a modality of the set.
    """
    sets = subsets(len(model.modalities), positions.device)  # [S, M]
    seeds, parts = noise.seed_tensor(evaluation.seed, device=positions.device), []
    without = [(~sets[:, m]).nonzero().squeeze(-1) for m in range(len(model.modalities))]
    for number, part, posteriors in encode_in_batches(evaluation, model, positions, len(without[0]), "coherence"):
        c = infer_shared_codes(model, posteriors, sets, 1, seeds, number, shared).squeeze(2)  # [rows, S, D]
        correct = torch.full((len(part), *sets.shape), torch.nan, device=c.device)
        for m, (name, classifier) in enumerate(classifiers.items()):
            expected = decode_modality(model, name, c[:, without[m]].flatten(0, 1), seeds, number)
            predicted = classifier.predict(expected, [factor]).view(len(part), -1)
            correct[:, without[m], m] = (predicted == values[part, None]).float()
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
        by_row = _nanmean_rows(np.stack(list(chosen.values()), 1))
        scores += _average_rows(by_row, f"given-{size}", {**details, "pairs": shares})
    for pair, (s, m) in pairs.items():
        if sizes[s] == 1:
            scores += _average_rows(correct[:, s, m], pair, details)
    return scores


def _average_rows(values: np.ndarray, part: str, details: dict[str, Any]) -> list[Score]:
    """Return the mean over rows that are not NaN, or nothing if there are none."""
    known = values[~np.isnan(values)]
    return [score_mean("coherence", "classifier", known, part, BOUNDS, details)] if len(known) else []


def _nanmean_rows(table: np.ndarray) -> np.ndarray:
    """Return np.nanmean(table, 1) without its warning for rows of NaN."""
    known = ~np.isnan(table)
    total = np.where(known, table, 0.0).sum(1)
    return np.divide(total, known.sum(1), out=np.full(len(table), np.nan), where=known.any(1))


def _score_joint(
    evaluation: Evaluation,
    model: MultimodalModel,
    classifiers: dict[str, ModalityClassifier],
    factor: str,
    samples: int,
    details: dict[str, Any],
) -> Score:
    """Return the agreement of all modalities drawn from the prior."""
    codes, parts = draw_prior_codes(evaluation, samples), []
    with torch.no_grad():
        for part in codes.split(choose_batch_size(codes.device, *DECODE_BATCHES)):
            expected = model.expected(part)
            parts.append(torch.cat([one.predict(expected[name], [factor]) for name, one in classifiers.items()], 1))
    predicted = torch.cat(parts).cpu()  # [samples, M]
    same = (predicted == predicted[:, :1]).all(1).double().numpy()
    size = evaluation.dataset.sizes[evaluation.dataset.factor_position(factor)]
    shares = torch.stack([column.bincount(minlength=size) for column in predicted.T]).double() / samples
    own = {key: value for key, value in details.items() if key not in ("shared", "chance")}
    own |= {"apart": float(shares.prod(0).sum()), "seen": dict(zip(model.modalities, shares.tolist(), strict=True))}
    return score_mean("coherence", "classifier", same, "joint", BOUNDS, own)
