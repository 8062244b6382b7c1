r"""Whether what is made of one modality shows what the others said (daunhawer2019, figure 3; shi2019; sutter2021).

For every set A of modalities that is not empty and every modality m outside it, c is drawn from q(c|x_A), s_m from its
prior, and a classifier of modality m (`reading`) is asked for the factor that all modalities share:

    coherence(A -> m) = mean_n [ value seen in E[x_m|c, s_m]  equals  the row's own ],    c ~ q(c|x_A), s_m ~ p(s_m)

`given-k` is the mean over all pairs with |A| = k, `m1-to-m2` one modality from another alone; every pair is in the
details. `joint` asks nothing of the data: c and all s_m come from the prior, and it is the share of draws in which the
classifiers of all modalities see one and the same value.

**Ceiling.** The classifiers' accuracy on real rows (in the details), nearly. **Chance** is the share of the most
frequent value; of `joint`, what modalities would have that are drawn apart (`apart`). A model that draws one value only
has a `joint` of 1: so has its `apart`.
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
from unbraid.metrics.generative.features.base import batch_on
from unbraid.metrics.generative.features.feature_sets import prior_codes
from unbraid.metrics.intervals import score_mean
from unbraid.metrics.multimodal.conditional_draws import AT_ONCE, Shared, made_of, posteriors_in_parts, shared_codes
from unbraid.metrics.multimodal.modality_classifiers import Reader, reader, shared_factor
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
    """Share of modalities made from others, for each set of them, in which a classifier sees the shared factor."""
    model = as_multimodal(evaluation.model)
    check_at_least(2, samples=samples)
    if len(model.modalities) < 2:
        raise UsageError("coherence/classifier makes one modality from others, and this model has one.")
    name, values = shared_factor(evaluation, factor)
    readers = {each: reader(evaluation, each, steps) for each in model.modalities}
    positions = evaluation.choose(samples)
    right = _right(evaluation, model, readers, name, values, positions, shared)
    classifiers = {each: one.details for each, one in readers.items()}
    chance = float(values[positions].bincount().max() / len(positions))
    details = {"factor": name, "shared": shared, "chance": chance, "classifiers": classifiers}
    return [*_given(model.modalities, right, details), _joint(evaluation, model, readers, name, samples, details)]


def _right(
    evaluation: Evaluation,
    model: MultimodalModel,
    readers: dict[str, Reader],
    factor: str,
    values: Tensor,
    positions: Tensor,
    shared: Shared,
) -> np.ndarray:
    """Whether a row's value is seen [rows, sets, M]; NaN for modalities of the set, and where a row lacks one of it."""
    sets = subsets(len(model.modalities), positions.device)  # [S, M]
    seeds, found = noise.seed_tensor(evaluation.seed, device=positions.device), []
    without = [(~sets[:, m]).nonzero().squeeze(-1) for m in range(len(model.modalities))]
    for number, part, posteriors in posteriors_in_parts(evaluation, model, positions, len(without[0]), "coherence"):
        c = shared_codes(model, posteriors, sets, 1, seeds, number, shared).squeeze(2)  # [rows, S, D]
        right = torch.full((len(part), *sets.shape), torch.nan, device=c.device)
        for m, (name, own) in enumerate(readers.items()):
            made = made_of(model, name, c[:, without[m]].flatten(0, 1), seeds, number)
            seen = own.read(made, [factor]).view(len(part), -1)
            right[:, without[m], m] = (seen == values[part, None]).float()
        lacking = (sets & ~posteriors.present.unsqueeze(1)).any(-1)
        right[lacking] = torch.nan
        found.append(right)
    return torch.cat(found).cpu().double().numpy()


def _given(names: tuple[str, ...], right: np.ndarray, details: dict[str, Any]) -> list[Score]:
    """Means by the size of a set, then one modality from another."""
    sets = subsets(len(names)).numpy()
    sizes, scores = sets.sum(1), []
    pairs = {
        f"{'+'.join(n for n, inside in zip(names, row, strict=True) if inside)}-to-{names[m]}": (s, m)
        for s, row in enumerate(sets)
        for m in np.flatnonzero(~row)
    }
    for size in range(1, len(names)):
        chosen = {pair: right[:, s, m] for pair, (s, m) in pairs.items() if sizes[s] == size}
        shares = {pair: float(np.nanmean(c)) for pair, c in chosen.items() if not np.isnan(c).all()}
        by_row = _known_mean(np.stack(list(chosen.values()), 1))
        scores += _score(by_row, f"given-{size}", {**details, "pairs": shares})
    for pair, (s, m) in pairs.items():
        if sizes[s] == 1:
            scores += _score(right[:, s, m], pair, details)
    return scores


def _score(values: np.ndarray, part: str, details: dict[str, Any]) -> list[Score]:
    """The mean of what is known of rows; nothing where no row has what it takes."""
    known = values[~np.isnan(values)]
    return [score_mean("coherence", "classifier", known, part, BOUNDS, details)] if len(known) else []


def _joint(
    evaluation: Evaluation,
    model: MultimodalModel,
    readers: dict[str, Reader],
    factor: str,
    samples: int,
    details: dict[str, Any],
) -> Score:
    """All modalities from the prior."""
    codes, read = prior_codes(evaluation, samples), []
    with torch.no_grad():
        for part in codes.split(batch_on(codes.device, *AT_ONCE)):
            made = model.expected(part)
            read.append(torch.cat([own.read(made[name], [factor]) for name, own in readers.items()], 1))
    seen = torch.cat(read).cpu()  # [samples, M]
    same = (seen == seen[:, :1]).all(1).double().numpy()
    size = evaluation.dataset.sizes[evaluation.dataset.factor_position(factor)]
    shares = torch.stack([column.bincount(minlength=size) for column in seen.T]).double() / samples
    told = {"apart": float(shares.prod(0).sum()), "seen": dict(zip(model.modalities, shares.tolist(), strict=True))}
    about = {key: value for key, value in details.items() if key not in ("shared", "chance")}
    return score_mean("coherence", "classifier", same, "joint", BOUNDS, {**about, **told})


def _known_mean(table: np.ndarray) -> np.ndarray:
    """Mean [rows] of what is known of each row; NaN where nothing is."""
    known = ~np.isnan(table)
    total = np.where(known, table, 0.0).sum(1)
    return np.divide(total, known.sum(1), out=np.full(len(table), np.nan), where=known.any(1))
