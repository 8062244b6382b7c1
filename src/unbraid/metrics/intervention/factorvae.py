r"""The FactorVAE score (kim2018, section 4): if one factor stands still, does one and the same latent stand still?

A vote: draw a factor k, a value of it and a batch of rows that share the value; the latent whose variance within the
batch is smallest in relation to its variance over all rows wins,

    d = argmin_j  Var_batch(z_j) / Var(z_j).

A majority vote over training votes (d, k) says for each latent which factor it stands for; the score is its accuracy
on further votes. Latents that vary too little over all rows (standard deviation below `threshold`) are left out first:
a constant latent, not pruned, would be 0/0 and win every vote. If none is left, the score is 0.

| protocol              | how                                                                                       |
|-----------------------|-------------------------------------------------------------------------------------------|
| `majority-vote`       | 64 rows a vote, 10,000 training and 5,000 test votes, variances of 10,000 different rows;  |
|                       | a vote of a latent that never won in training is wrong                                    |
| `disentanglement_lib` | the same sizes (locatello2019); variances of 10,000 rows drawn with repetition; a latent   |
|                       | that never won in training stands for the first factor                                    |

On a complete grid both draw as the papers do: every other factor uniformly. Chance lies at one over the number of
factors. The score does not see that two latents share a factor, and it depends on the batch size (chen2018, figure S5).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels, check_at_least, name_latents
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.intervals import resampling_interval
from unbraid.metrics.intervention.fixed_factor_batches import (
    Batches,
    Population,
    code_tensor,
    gathered,
    several_factors,
)
from unbraid.metrics.train_test_split import Compat, find_compat, is_published
from unbraid.threads import one_thread

FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (0, 1), "invariant": ("order", "sign"), "perfect": 1.0}


@metric_protocol(
    "factorvae/majority-vote",
    "FactorVAE score: which latent stands still when one factor does, by majority vote.",
    reference="kim2018",
    **FACTS,
)
@metric_protocol(
    "factorvae/disentanglement_lib",
    "FactorVAE score as disentanglement_lib computes it.",
    reference="locatello2019",
    **FACTS,
)
def on_run(
    evaluation: Evaluation,
    protocol: str,
    *,
    factors: tuple[str, ...] | None = None,
    samples: int | None = None,
    batch: int = 64,
    train: int = 10_000,
    test: int = 5_000,
    pool: int = 10_000,
    threshold: float = 0.05,
    resamples: int = 200,
) -> Score:
    """The FactorVAE score of a run."""
    settings = {"batch": batch, "train": train, "test": test, "pool": pool, "resamples": resamples}
    table, compat = evaluation.tabulate(samples, factors), find_compat(protocol)
    return table.score(factorvae, threshold=threshold, compat=compat, **settings)


def factorvae(
    codes: Any,
    factors: Any,
    *,
    batch: int = 64,
    train: int = 10_000,
    test: int = 5_000,
    pool: int = 10_000,
    threshold: float = 0.05,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """FactorVAE score of any codes [rows, latents] and discrete factors [rows, factors].

    The given rows are the population that batches are drawn from. Codes on a GPU are worked on there, with the same
    rows as on the CPU. The 95% interval is the value -+ 1.96 standard errors over resampled votes, those of training
    and of test; the rows count as given.
    """
    published = is_published(compat)
    check_at_least(2, batch=batch, pool=pool)
    check_at_least(1, train=train, test=test)
    check_at_least(0, threshold=threshold)
    values = code_tensor(codes)
    labels = several_factors("FactorVAE", factors, len(values), names)
    latents = name_latents(values.shape[1], latents)
    population, rng = Population(labels), np.random.default_rng(seed)
    variance = _global_variance(values, pool, rng, repeat=published)
    active = np.flatnonzero(variance.sqrt().cpu().numpy() >= threshold)
    protocol = compat or "majority-vote"
    if not len(active):
        why = f"The standard deviation of every latent is below {threshold}."
        return Score("factorvae", protocol, 0.0, len(values), details={"active": [], "why": why})
    if len(active) < len(latents):
        kept = torch.from_numpy(active).to(values.device)
        values, variance = values[:, kept], variance[kept]
    drawn = [population.batches(rng, count, batch) for count in (train, test)]
    trained, tested = (_table(winners(values, variance, one), one.factor, labels, len(active)) for one in drawn)
    value = float(_accuracy(trained, tested, not published))
    resampled = _accuracy(_resampled(rng, resamples, trained), _resampled(rng, resamples, tested), not published)
    details = _details(trained, tested, labels.names, [latents[j] for j in active])
    details["train_accuracy"] = float(_accuracy(trained, trained, not published))
    interval = resampling_interval(value, resampled, bounds=(0.0, 1.0))
    return Score("factorvae", protocol, value, len(values), interval, details=details)


@one_thread()
def winners(codes: Tensor, variance: Tensor, drawn: Batches) -> np.ndarray:
    """The latent of least relative variance in each batch; one that never varies comes before all others."""
    relative = torch.where(variance > 0, _local_variances(codes, drawn.rows) / variance, -1.0)
    return relative.argmin(1).cpu().numpy()


@one_thread()
def _global_variance(codes: Tensor, pool: int, rng: np.random.Generator, repeat: bool) -> Tensor:
    rows = rng.choice(len(codes), pool if repeat else min(pool, len(codes)), replace=repeat)
    picked = codes[torch.from_numpy(rows).to(codes.device)]
    return (picked - picked[0]).var(0)  # minus a row: a constant latent comes out as exactly 0


def _local_variances(codes: Tensor, rows: np.ndarray) -> Tensor:
    """Unbiased variance of each latent within each batch [batches, latents]."""
    count, parts = rows.shape[1], []
    for part in gathered(codes, rows):
        shifted = part - part[:, :1]  # equal codes leave exactly 0, and large means no rounding error
        parts.append((shifted.square().sum(1) - shifted.sum(1).square() / count) / (count - 1))
    return torch.cat(parts).clamp(min=0)


def _table(winner: np.ndarray, factor: np.ndarray, labels: FactorLabels, latents: int) -> np.ndarray:
    """Number of votes by factor and latent."""
    shape = len(labels.names), latents
    return np.bincount(factor * latents + winner, minlength=shape[0] * shape[1]).reshape(shape)


def _resampled(rng: np.random.Generator, count: int, table: np.ndarray) -> np.ndarray:
    """The table as it might have come out with other votes [count, factors, latents]."""
    return rng.multinomial(table.sum(), table.ravel() / table.sum(), size=count).reshape(count, *table.shape)


def _accuracy(trained: np.ndarray, tested: np.ndarray, seen_only: bool) -> np.ndarray:
    """Share of the test votes that the majority of the training votes foretells; tables [..., factors, latents].

    `seen_only`: a latent without any training vote foretells nothing; otherwise the first factor.
    """
    foretold = trained.argmax(-2)
    right = np.take_along_axis(tested, foretold[..., None, :], axis=-2)[..., 0, :]
    if seen_only:
        right = right * (trained.sum(-2) > 0)
    return np.asarray(right.sum(-1) / tested.sum((-2, -1)))


def _details(trained: np.ndarray, tested: np.ndarray, names: Sequence[str], latents: Sequence[str]) -> dict[str, Any]:
    foretold, seen = trained.argmax(0), trained.sum(0) > 0
    right = [int(row[foretold == k].sum()) for k, row in enumerate(tested)]
    drawn = tested.sum(1).tolist()
    return {
        "active": list(latents),
        "stands_for": {latent: names[k] for latent, k, known in zip(latents, foretold, seen, strict=True) if known},
        "accuracy": {name: r / n if n else None for name, r, n in zip(names, right, drawn, strict=True)},
        "votes": dict(zip(names, tested.tolist(), strict=True)),
    }
