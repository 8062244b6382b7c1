r"""How different the pictures are that a model makes of one condition (daunhawer2019, figure 6).

Given x_a of another modality, c is drawn from q(c|x_a) and s_m from its prior, `draws` times; a classifier of modality
m (`reading`) reads the factors of m off what is decoded. With p_nv the share of condition n's pictures that are seen as
value v of a factor,

    diversity = mean_n  - sum_v p_nv log p_nv     in nats, mean over the factors of m and over the other modalities a

The factors of m are those that its classifier reads better than by chance off real observations and no other
modality's does: what the condition cannot know. Each has a score of its own.

**Ceiling.** log K of a factor with K values, if they are equally frequent; a little less of `draws` pictures, and both
are in the details, with the entropy of what is read off real rows (`real`). A decoder that makes the same picture of
all draws has 0. Noise is read as anything and is diverse: `coherent` in the details is the share of these pictures in
which the shared factor is seen as the condition has it.
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
from unbraid.metrics.information.histogram import plogp
from unbraid.metrics.intervals import score_mean
from unbraid.metrics.multimodal.conditional_draws import Shared, made_of, posteriors_in_parts, shared_codes
from unbraid.metrics.multimodal.modality_classifiers import Reader, reader, shared_factor
from unbraid.models import MultimodalModel, as_multimodal


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
    """Entropy of the factors of a modality in pictures made of one condition, mean over conditions.

    `target` and `source` are the modality that is made and the one that is given, by default each and all others;
    `factors` leaves some out, and `factor` is the one that modalities share.
    """
    model = as_multimodal(evaluation.model)
    check_at_least(2, samples=samples, draws=draws)
    for name in (target, source):
        if name is not None and name not in model.modalities:
            raise unknown("modality", name, model.modalities, error=SettingError)
    if len(model.modalities) < 2 or (target is not None and target == source):
        raise UsageError("diversity/entropy makes one modality from another one, so there must be two.")
    common, values = shared_factor(evaluation, factor)
    readers = {name: reader(evaluation, name, steps) for name in model.modalities}
    scores: list[Score] = []
    for name in [target] if target else [n for n in model.modalities if n != source]:
        own = [f for f in _own_factors(readers, name, common) if factors is None or f in factors]
        if own:
            others = [n for n in model.modalities if n == source or (source is None and n != name)]
            scores += _scores(
                evaluation, model, readers[name], (name, others), (common, own), values, (draws, shared), samples
            )
    if not scores:
        raise DataError(
            f"No factor of {evaluation.dataset.name} but {common} can be read off one modality alone, so nothing is "
            "known that pictures of one condition could differ in; if there is one, train longer (steps=1500)."
        )
    return scores


def _own_factors(readers: dict[str, Reader], name: str, common: str) -> list[str]:
    """Factors that can be read off one modality and no other."""
    elsewhere = {factor for other, one in readers.items() if other != name for factor in one.legible}
    return [factor for factor in readers[name].legible if factor not in elsewhere and factor != common]


def _scores(
    evaluation: Evaluation,
    model: MultimodalModel,
    own: Reader,
    made: tuple[str, list[str]],
    factors: tuple[str, list[str]],
    values: Tensor,
    drawn: tuple[int, Shared],
    samples: int,
) -> list[Score]:
    """Of one modality, made of each of the others: the mean over its factors, then each factor."""
    positions, (target, sources), (common, read) = evaluation.choose(samples), made, factors
    data, (draws, shared) = evaluation.dataset, drawn
    sizes = [data.sizes[data.factor_position(factor)] for factor in read]
    sets = torch.stack([torch.tensor([n == s for n in model.modalities]) for s in sources]).to(positions.device)
    seeds, found, right = noise.seed_tensor(evaluation.seed, device=positions.device), [], []
    for number, part, posteriors in posteriors_in_parts(evaluation, model, positions, len(sets) * draws, "diversity"):
        there = (posteriors.present.unsqueeze(1) & sets).any(-1)  # [rows, sources]
        c = shared_codes(model, posteriors, sets, draws, seeds, number, shared)
        seen = own.read(made_of(model, target, c.flatten(0, 2), seeds, number), [common, *read])
        seen, there = seen.view(*there.shape, draws, -1).cpu(), there.cpu()
        right.append((seen[..., 0] == values[part, None, None].cpu())[there].double().mean(-1))
        found.append(torch.stack([_entropy(seen[..., 1 + k], size) for k, size in enumerate(sizes)], -1)[there])
    each = torch.cat(found).numpy()  # [conditions, factors]
    if len(each) < 2:
        raise DataError(f"Fewer than 2 rows have {' or '.join(sources)}, so {target} cannot be made of them.")
    facts: dict[str, Any] = {"sources": sources, "draws": draws, "shared": shared, "factor": common}
    facts |= {"coherent": float(torch.cat(right).mean()), "classifier": own.details}
    told = [_ceilings(own, factor, size, draws) for factor, size in zip(read, sizes, strict=True)]
    whole = {key: float(np.mean([one[key] for one in told])) for key in told[0]}
    parts = {target: (each.mean(1), {**whole, "factors": read})}
    parts |= {f"{target}/{name}": (each[:, k], told[k]) for k, name in enumerate(read)}
    return [
        score_mean("diversity", "entropy", values, part, (0.0, math.inf), {**facts, **own})
        for part, (values, own) in parts.items()
    ]


def _ceilings(own: Reader, factor: str, size: int, draws: int) -> dict[str, float]:
    """What entropy a factor may have: at most, of so many draws, and of real rows as they are read."""
    real = own.readings[:, list(own.accuracy).index(factor)].bincount().numpy()
    return {"ceiling": math.log(size), "ceiling_of_draws": drawn_entropy(size, draws), "real": entropy(real)}


def _entropy(seen: Tensor, size: int) -> Tensor:
    """Entropy [...] of the values [..., draws] that were seen, in nats."""
    counts = torch.zeros(*seen.shape[:-1], size, dtype=torch.float64)
    counts.scatter_add_(-1, seen, torch.ones_like(seen, dtype=torch.float64))
    return plogp(counts / seen.shape[-1]).sum(-1)


def drawn_entropy(size: int, draws: int) -> float:
    """The entropy that so many draws of equally frequent values have on average, in nats."""
    from scipy.stats import binom

    counts = np.arange(1, draws + 1)
    shares = counts / draws
    return float(-size * (binom.pmf(counts, draws, 1 / size) * shares * np.log(shares)).sum())
