r"""Diversity of the images that a model generates from one condition (daunhawer2019, figure 6).

Given x_a of another modality, c is drawn from q(c|x_a) and s_m from its prior, `draws` times, and a classifier of
modality m (`modality_classifiers`) predicts the factors of m from the decoded images. If a share p_nv of the images of
condition n is predicted to have value v of a factor,

    diversity = mean_n  - sum_v p_nv log p_nv     in nats, mean over the factors of m and over the other modalities a

The factors of m are those that its classifier, and no other modality's, predicts better than chance on real rows: the
condition does not determine them. Each factor also has its own score.

**Ceiling.** log K for a factor with K equally frequent values, and a little less with `draws` images. The details hold
both, and the entropy of the predictions on real rows (`real`). A decoder that ignores its draws has 0. Noise gets
arbitrary predictions and looks diverse, so the details hold the share of images that show the shared factor of their
condition (`coherent`).
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import DataError, SettingError, UsageError, unknown
from unbraid.metrics.arrays import check_at_least, entropy
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.stacked_histograms import plogp
from unbraid.metrics.intervals import score_mean, spread_at
from unbraid.metrics.multimodal.conditional_draws import Shared, decode_modality, encode_in_batches, infer_shared_codes
from unbraid.metrics.multimodal.modality_classifiers import (
    FactorClassifiers,
    ModalityClassifier,
    get_factor_classifiers,
)
from unbraid.models import as_multimodal


@metric(
    "diversity/entropy",
    reference="daunhawer2019",
    needs=("modalities", "factors"),
    bounds=(0, float("inf")),
    trial={"samples": 8, "draws": 8, "steps": 100},
)
def diversity(
    evaluation: Evaluation,
    *,
    target: str | None = None,
    source: str | None = None,
    factor: str | None = None,
    factors: tuple[str, ...] | None = None,
    samples: int = 100,
    draws: int = 200,
    shared: Shared = "drawn",
    steps: int | None = None,
) -> list[Score]:
    """Entropy of a modality's factors in images generated from one condition, mean over conditions.

    The modality `target` is generated from `source`; by default each is, from every other one. `factors` restricts the
    factors of the target, and `factor` is the one that modalities share.
    """
    model = as_multimodal(evaluation.model)
    check_at_least(2, samples=samples, draws=draws)
    for name in (target, source):
        if name is not None and name not in model.modalities:
            raise unknown("modality", name, model.modalities, error=SettingError)
    if len(model.modalities) < 2 or (target is not None and target == source):
        raise UsageError("diversity/entropy generates one modality from another, so it needs two modalities.")
    common, _, _ = classifiers = get_factor_classifiers(evaluation, factor, steps)
    scores: list[Score] = []
    for name in [target] if target else [n for n in model.modalities if n != source]:
        specific = [f for f in _specific_factors(classifiers, name) if factors is None or f in factors]
        if specific:
            others = [n for n in model.modalities if n == source or (source is None and n != name)]
            rows = evaluation.choose(samples)
            scores += _score_target(evaluation, classifiers, (name, others), specific, rows, (draws, shared))
    if not scores:
        raise DataError(
            f"No factor of {evaluation.dataset.name} except {common} is predictable from exactly one modality, so "
            "images of one condition have nothing to differ in; if there is such a factor, train longer (steps=1500)."
        )
    return scores


def _specific_factors(classifiers: FactorClassifiers, name: str) -> list[str]:
    """Return the factors that are predictable from one modality and no other."""
    others = {f for other, one in classifiers.of.items() if other != name for f in one.predictable_factors}
    return [f for f in classifiers.of[name].predictable_factors if f not in (*others, classifiers.factor)]


def _score_target(
    evaluation: Evaluation,
    classifiers: FactorClassifiers,
    modalities: tuple[str, list[str]],
    specific: list[str],
    positions: Tensor,
    drawn: tuple[int, Shared],
) -> list[Score]:
    """Return the scores of one target modality, generated from each source: the mean over its factors, then each."""
    (target, sources), (common, values, _), (draws, shared) = modalities, classifiers, drawn
    data, model, classifier = evaluation.dataset, as_multimodal(evaluation.model), classifiers.of[target]
    sizes = [data.sizes[data.factor_position(factor)] for factor in specific]
    sets = torch.stack([torch.tensor([n == s for n in model.modalities]) for s in sources]).to(positions.device)
    seeds, entropies, coherent = noise.seed_tensor(evaluation.seed, device=positions.device), [], []
    for number, part, posteriors in encode_in_batches(evaluation, model, positions, len(sets) * draws, "diversity"):
        present = (posteriors.present.unsqueeze(1) & sets).any(-1)  # [rows, sources]
        c = infer_shared_codes(model, posteriors, sets, draws, seeds, number, shared)
        expected = decode_modality(model, target, c.flatten(0, 2), seeds, number)
        predicted = classifier.predict(expected, [common, *specific]).view(*present.shape, draws, -1).cpu()
        present = present.cpu()
        coherent.append((predicted[..., 0] == values[part, None, None].cpu())[present].double().mean(-1))
        by_factor = [_entropy(predicted[..., 1 + k], size) for k, size in enumerate(sizes)]
        entropies.append(torch.stack(by_factor, -1)[present])
    found = torch.cat(entropies).numpy()  # [conditions, factors]
    if len(found) < 2:
        raise DataError(f"Fewer than 2 rows have {' or '.join(sources)}, so {target} cannot be generated from them.")
    common_details: dict[str, Any] = {"sources": sources, "draws": draws, "shared": shared, "factor": common}
    common_details |= {"coherent": float(torch.cat(coherent).mean()), "classifier": classifier.details}
    ceilings = [_ceilings(classifier, factor, size, draws) for factor, size in zip(specific, sizes, strict=True)]
    mean_ceilings = {key: float(np.mean([one[key] for one in ceilings])) for key in ceilings[0]}
    covers = spread_at(len(found))  # few draws of a condition have a low entropy
    parts = {target: (found.mean(1), {**mean_ceilings, "factors": specific})}
    parts |= {f"{target}/{name}": (found[:, k], ceilings[k]) for k, name in enumerate(specific)}
    return [
        score_mean("diversity", "entropy", each, part, (0.0, math.inf), {**common_details, **details}, covers)
        for part, (each, details) in parts.items()
    ]


def _ceilings(classifier: ModalityClassifier, factor: str, size: int, draws: int) -> dict[str, float]:
    """Return the largest entropy of a factor, that of `draws` uniform draws, and that of predictions on real rows."""
    real = classifier.held_out_predictions[:, list(classifier.accuracy).index(factor)].bincount().numpy()
    return {"ceiling": math.log(size), "ceiling_of_draws": expected_entropy(size, draws), "real": entropy(real)}


def _entropy(values: Tensor, size: int) -> Tensor:
    """Return the entropy [...] of values [..., draws] in 0 … size-1, in nats."""
    counts = torch.zeros(*values.shape[:-1], size, dtype=torch.float64)
    counts.scatter_add_(-1, values, torch.ones_like(values, dtype=torch.float64))
    return plogp(counts / values.shape[-1]).sum(-1)


def expected_entropy(size: int, draws: int) -> float:
    """Return the mean entropy of the sample of `draws` draws from `size` equally frequent values, in nats."""
    from scipy.stats import binom

    counts = np.arange(1, draws + 1)
    shares = counts / draws
    return float(-size * (binom.pmf(counts, draws, 1 / size) * shares * np.log(shares)).sum())
