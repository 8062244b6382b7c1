r"""The FactorVAE score (kim2018, section 4): if a factor is fixed, is it always the same latent that varies least?

A vote: draw a factor k, a value of it and a batch of rows that share the value; the latent whose variance within the
batch, relative to its variance over all rows, is smallest wins,

    d = argmin_j  Var_batch(z_j) / Var(z_j).

The majority of the training votes (d, k) assigns a factor to each latent; the score is the accuracy of this assignment
on further votes. Latents with a standard deviation below `threshold` over all rows are left out first: a constant
latent would have 0/0 and win every vote. If none is left, the score is 0.

| protocol              | details                                                                                   |
|-----------------------|-------------------------------------------------------------------------------------------|
| `majority-vote`       | 64 rows a vote, 10,000 training and 5,000 test votes, variances of 10,000 distinct rows;  |
|                       | a vote for a latent that never won in training is wrong                                   |
| `disentanglement_lib` | the same sizes (locatello2019); variances of 10,000 rows drawn with replacement; a latent |
|                       | that never won in training stands for the first factor                                    |

On a complete grid both draw as the papers do: every other factor uniformly. Chance is one over the number of factors.
The score ignores that two latents may share a factor, and it depends on the batch size (chen2018, figure S5).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unbraid.metrics.arrays import FactorLabels, check_at_least, name_latents, to_tensor
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.intervals import ALL_DRAWS, Spread, measure_halves, no_interval, share_interval
from unbraid.metrics.intervention.fixed_factor_batches import FixedFactorBatches, gather_codes, read_population
from unbraid.metrics.train_test_split import Compat, is_published
from unbraid.threads import one_thread

factorvae_metric = partial(
    code_metric,
    settings="samples batch train test pool threshold resamples",
    defaults={"samples": None},
    needs=("factors",),
    bounds=(0, 1),
    invariant=("order", "sign"),
    perfect=1.0,
)


@factorvae_metric(
    "factorvae/majority-vote",
    "FactorVAE score: does the same latent always vary least when a factor is fixed, by majority vote.",
    "kim2018",
)
@factorvae_metric(
    "factorvae/disentanglement_lib", "FactorVAE score as disentanglement_lib computes it.", "locatello2019"
)
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
    resamples: int = 20,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Return the FactorVAE score of codes [rows, latents] and discrete factors [rows, factors].

    Batches are drawn from these rows. Codes on a GPU stay there, with the same rows as on the CPU. The 95% interval is
    that of a share of the test votes (wilson1927), wider if the majority differs between halves of the training votes;
    it is for other votes from the same rows.
    """
    published = is_published(compat)
    check_at_least(2, batch=batch, pool=pool)
    check_at_least(1, train=train, test=test)
    check_at_least(0, threshold=threshold)
    values = to_tensor("codes", codes)
    population = read_population("FactorVAE", factors, len(values), names)
    latents = name_latents(values.shape[1], latents)
    labels, rng = population.labels, np.random.default_rng(seed)
    variance = _global_variance(values, pool, rng, repeat=published)
    active = np.flatnonzero(variance.sqrt().cpu().numpy() >= threshold)
    protocol = compat or "majority-vote"
    if not len(active):
        why = f"The standard deviation of every latent is below {threshold}."
        return Score(
            "factorvae", protocol, 0.0, len(values), details={"active": [], "why": why}, covers=no_interval(why)
        )
    if len(active) < len(latents):
        columns = torch.from_numpy(active).to(values.device)
        values, variance = values[:, columns], variance[columns]
    drawn = [population.draw_batches(rng, count, batch) for count in (train, test)]
    (of_train, chosen), (of_test, tested) = ((find_winners(values, variance, one), one.factor) for one in drawn)

    def mark_right(some: np.ndarray | slice) -> np.ndarray:
        """Return which test votes the majority of some training votes predicts."""
        assigned = _assign(_count_votes(of_train[some], chosen[some], labels, len(active)), not published)
        return (assigned[of_test] == tested).astype(np.float64)

    right = mark_right(slice(None))
    value, refits = float(right.mean()), measure_halves(mark_right, [train], resamples, rng)
    votes, on_test = (_count_votes(*of, labels, len(active)) for of in ((of_train, chosen), (of_test, tested)))
    details = _details(votes, on_test, labels.names, [latents[j] for j in active])
    details["train_accuracy"] = float((_assign(votes, not published)[of_train] == chosen).mean())
    spread = Spread.of_refits(right, np.array(refits), 0.5)
    interval = spread.share_interval(value, test) if spread else share_interval(value, test)
    return Score("factorvae", protocol, value, len(values), interval, details=details, covers=ALL_DRAWS)


@one_thread()
def find_winners(codes: Tensor, variance: Tensor, drawn: FixedFactorBatches) -> np.ndarray:
    """Return the latent of least relative variance in each batch; a constant latent always wins."""
    relative = torch.where(variance > 0, _local_variances(codes, drawn.rows) / variance, -1.0)
    return relative.argmin(1).cpu().numpy()


@one_thread()
def _global_variance(codes: Tensor, pool: int, rng: np.random.Generator, repeat: bool) -> Tensor:
    rows = rng.choice(len(codes), pool if repeat else min(pool, len(codes)), replace=repeat)
    picked = codes[torch.from_numpy(rows).to(codes.device)]
    return (picked - picked[0]).var(0)  # minus a row: a constant latent comes out as exactly 0


def _local_variances(codes: Tensor, rows: np.ndarray) -> Tensor:
    """Return the unbiased variance of each latent within each batch [batches, latents]."""
    count, parts = rows.shape[1], []
    for part in gather_codes(codes, rows):
        shifted = part - part[:, :1]  # equal codes give exactly 0, and large means cause no rounding error
        parts.append((shifted.square().sum(1) - shifted.sum(1).square() / count) / (count - 1))
    return torch.cat(parts).clamp(min=0)


def _count_votes(winner: np.ndarray, factor: np.ndarray, labels: FactorLabels, latents: int) -> np.ndarray:
    """Return the number of votes [factors, latents]."""
    shape = len(labels.names), latents
    return np.bincount(factor * latents + winner, minlength=shape[0] * shape[1]).reshape(shape)


def _assign(votes: np.ndarray, winners_only: bool) -> np.ndarray:
    """Return the factor of each latent by the majority of votes [factors, latents].

    A latent without votes stands for no factor (-1) if `winners_only`, else for the first one.
    """
    return np.where((votes.sum(0) > 0) | (not winners_only), votes.argmax(0), -1)


def _details(trained: np.ndarray, tested: np.ndarray, names: Sequence[str], latents: Sequence[str]) -> dict[str, Any]:
    assigned, has_won = trained.argmax(0), trained.sum(0) > 0
    right = [int(row[assigned == k].sum()) for k, row in enumerate(tested)]
    drawn = tested.sum(1).tolist()
    return {
        "active": list(latents),
        "stands_for": {latent: names[k] for latent, k, won in zip(latents, assigned, has_won, strict=True) if won},
        "accuracy": {name: r / n if n else None for name, r, n in zip(names, right, drawn, strict=True)},
        "votes": dict(zip(names, tested.tolist(), strict=True)),
    }
