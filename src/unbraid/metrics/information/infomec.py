r"""InfoMEC (hsu2023, section 4): modularity, explicitness and compactness in one currency, normalised information.

With N_{kj} = I(v_k; z_j) / H(v_k) over the active latents j = 1 … J and the factors k = 1 … K,

    modularity  (InfoM) = ( mean_j max_k N_{kj} / sum_k N_{kj} - 1/K ) / ( 1 - 1/K )
    compactness (InfoC) = ( mean_k max_j N_{kj} / sum_j N_{kj} - 1/J ) / ( 1 - 1/J )
    explicitness (InfoE) = mean_k ( 1 - H_V(v_k | z) / H_V(v_k) )

H_V is what is left to know for a linear predictor: the log loss of an unpenalised softmax regression on the whole
standardised code, its classes balanced, over the rows it was fitted to; without a code that is log of the number of
values. A latent is active if its range is more than 1/20 of the widest one.

| protocol    | how I is measured                                                                                |
|-------------|--------------------------------------------------------------------------------------------------|
| `knn`       | 10 nearest neighbours (ross2014), for continuous latents                                         |
| `histogram` | 20 equal-width bins per latent, as in the histogram MIG                                          |
| `quantised` | each different value of a latent is its own bin, all that vary are active, and the predictor sees|
|             | which value each latent has (for plain arrays of quantised codes)                                |

Where the formulas divide by nothing: a latent that tells of no factor, or a factor of which none tells, counts as
evenly spread (0 after normalisation); a single active latent is as compact as can be; without any active one all is 0.
The regression is taken to its optimum, where the authors stop after 100 steps: that of a perfect code is then 0.

**Ceilings.** All three reach 1 under `knn` and `quantised`. Under `histogram` chance fills cells, so each latent seems
to tell a little of every factor: InfoM and InfoC of a perfect code of sprites reach about .98 with 10,000 rows (that 20
bins lose part of 32 or 40 values lowers N, but neither ratio). Being ratios, they see no amount: under `knn`, which
cuts off at 0, latents of pure noise may well look modular. Read them with InfoE.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from unbraid.errors import UsageError
from unbraid.metrics.arrays import (
    FactorLabels,
    check_at_least,
    check_known,
    find_device,
    name_latents,
    to_labels,
    to_matrix,
)
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.histogram import JointHistograms, discretise
from unbraid.metrics.information.nearest_neighbours import estimate_with_halves
from unbraid.metrics.intervals import mean_interval, resampling_interval
from unbraid.metrics.predictive.logistic import fit_softmax, standardise

Protocol = Literal["knn", "histogram", "quantised"]

ACTIVE = 1 / 20
"""Share of the widest latent's range that a latent must exceed to count."""

RIDGE = 1e-10
"""Penalty per row on the predictor's weights, so that it has an optimum where values can be told apart exactly."""

FACTS: dict[str, Any] = {
    "year": 2023,
    "reference": "hsu2023",
    "needs": ("factors",),
    "bounds": (0, 1),
    "invariant": ("order", "sign"),  # which latents are active depends on their scales
    "perfect": 1.0,
    "noise": {"explicitness": 0.0},
}


@metric("infomec/knn", **FACTS)
def knn(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    samples: int = 10_000,
    neighbours: int = 10,
    resamples: int = 20,
) -> list[Score]:
    """InfoMEC of continuous latents, by nearest neighbours."""
    table = evaluation.tabulate(samples, factors)
    return table.score(infomec, protocol="knn", neighbours=neighbours, resamples=resamples)


@metric("infomec/histogram", **FACTS)
def histogram(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    samples: int = 10_000,
    bins: int = 20,
    resamples: int = 100,
) -> list[Score]:
    """InfoMEC with information by histograms."""
    table = evaluation.tabulate(samples, factors)
    return table.score(infomec, protocol="histogram", bins=bins, resamples=resamples)


def infomec(
    codes: Any,
    factors: Any,
    *,
    protocol: Protocol = "knn",
    samples: int | None = 10_000,
    bins: int = 20,
    neighbours: int = 10,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int | None = None,
    seed: int = 0,
) -> list[Score]:
    """Modularity, explicitness and compactness of codes [rows, latents] and discrete factors [rows, factors].

    Of more than `samples` rows that many are drawn without repetition (None takes all).

    The 95% intervals of modularity and compactness are the value -+ 1.96 standard errors, from 100 bootstrap resamples,
    or, since neighbours bear no repeated rows, from the spread over 20 random halves under `knn`; that of explicitness
    is over rows, with the predictor held fixed.
    """
    check_known("protocol", protocol, get_args(Protocol))
    check_at_least(2, bins=bins)
    check_at_least(1, neighbours=neighbours)
    values = to_matrix("codes", codes)
    labels = to_labels(factors, len(values), names)
    if len(labels.sizes) < 2:
        raise UsageError("InfoMEC sets factors against each other, but there is only one.")
    rng = np.random.default_rng(seed)
    if samples is not None and samples < len(values):
        rows = rng.choice(len(values), max(samples, 2), replace=False)
        values, labels = values[rows], to_labels(labels.values[rows], len(rows), labels.names)
    resamples = resamples if resamples is not None else 20 if protocol == "knn" else 100
    named, device, quantised = name_latents(values.shape[1], latents), find_device(codes), protocol == "quantised"
    width = np.ptp(values, axis=0)
    active = width > (0.0 if quantised else ACTIVE) * width.max(initial=0.0)
    if protocol == "knn":
        its_seed, halves = int(rng.integers(2**31)), resamples if len(values) >= 20 else 0
        found = estimate_with_halves(values, labels, neighbours, halves, rng, its_seed, device)
        normalised, *drawn = (information / _positive(some.entropy) for information, some in found)
    else:
        normalised, *drawn = _by_counting(values, labels, None if quantised else bins, resamples, rng, device)
    shared = {"active": [name for name, is_active in zip(named, active, strict=True) if is_active]}
    modularity, compactness = _ratios(protocol, normalised, drawn, active, labels, named, shared)
    inputs = _one_hot(values) if quantised else values
    return [modularity, _explicitness(protocol, inputs, labels, device, shared), compactness]


def _by_counting(
    codes: np.ndarray,
    labels: FactorLabels,
    bins: int | None,
    resamples: int,
    rng: np.random.Generator,
    device: torch.device,
) -> list[np.ndarray]:
    """Normalised information [latents, factors] by histogram, or by equal values; then that of bootstrap resamples."""
    if bins is None:
        binned = np.stack([np.unique(column, return_inverse=True)[1] for column in codes.T], axis=1)
    else:
        binned = discretise(codes, bins)
    cells = JointHistograms(binned, int(binned.max()) + 1, labels, device)
    draws = [None, *(rng.integers(len(codes), size=len(codes)) for _ in range(resamples))]
    return [information / _positive(entropy) for information, entropy in cells.informations(draws)]


def _ratios(
    protocol: Protocol,
    normalised: np.ndarray,
    drawn: Sequence[np.ndarray],
    active: np.ndarray,
    labels: FactorLabels,
    latents: Sequence[str],
    shared: dict[str, Any],
) -> tuple[Score, Score]:
    """Modularity and compactness from N [latents, factors]."""
    each = {"modularity": _shares(normalised[active]), "compactness": _shares(normalised[active].T)}
    kept = [name for name, is_active in zip(latents, active, strict=True) if is_active]
    owners = {"modularity": kept, "compactness": labels.names}
    measures: dict[str, Callable[[np.ndarray], float]] = {
        "modularity": lambda one: _above_chance(_shares(one[active]), one.shape[1]),
        "compactness": lambda one: _above_chance(_shares(one[active].T), int(active.sum())),
    }
    scores = []
    for part, measure in measures.items():
        value = measure(normalised)
        interval = resampling_interval(value, [measure(one) for one in drawn], bounds=(0.0, 1.0))
        details = {
            "share": dict(zip(owners[part], each[part].tolist(), strict=True)),
            "normalised_information": dict(zip(labels.names, normalised.T.tolist(), strict=True)),
            "latents": list(latents),
            **shared,
        }
        scores.append(Score("infomec", protocol, value, len(labels.values), interval, part, details=details))
    return scores[0], scores[1]


def _shares(normalised: np.ndarray) -> np.ndarray:
    """What the greatest entry of each row has of their sum; an even share where there is nothing."""
    if not normalised.size:
        return np.zeros(len(normalised))
    total = normalised.sum(1)
    known = total > 1e-9  # rounding leaves 1e-16 where there is nothing
    return np.where(known, normalised.max(1) / _positive(total), 1 / normalised.shape[1])


def _above_chance(shares: np.ndarray, others: int) -> float:
    """Mean share, rescaled so that an even one is 0 and a whole one 1."""
    if not len(shares) or others == 0:
        return 0.0
    return 1.0 if others == 1 else float(np.clip((shares.mean() - 1 / others) / (1 - 1 / others), 0, 1))


def _explicitness(
    protocol: Protocol, inputs: np.ndarray, labels: FactorLabels, device: torch.device, shared: dict[str, Any]
) -> Score:
    """Share of each factor's entropy that a linear predictor takes away, over the rows it was fitted to."""
    (x,) = standardise(torch.as_tensor(inputs, device=device))
    model = fit_softmax(x, labels.values, C=1 / (RIDGE * len(x)), balanced=True, precision=1e-7)
    kept = []
    for log_p, column, size in zip(model.log_probabilities(x), labels.values.T, labels.sizes, strict=True):
        target = torch.as_tensor(column, device=device)[:, None]
        kept.append(1 + log_p.gather(1, target)[:, 0].cpu().numpy() / np.log(size))
    by_row = np.stack(kept, axis=1)  # [rows, factors]
    by_factor = by_row.mean(0)
    by_row = by_row[:, by_factor > 0]  # who knows less than nothing may ignore the code: V-information is at least 0
    value = float(by_factor.clip(0).mean())
    interval = mean_interval(by_row.sum(1) / len(by_factor), (0.0, 1.0)) if by_row.size else None
    details = {"of_factors": dict(zip(labels.names, by_factor.clip(0).tolist(), strict=True)), **shared}
    return Score("infomec", protocol, value, len(x), interval, "explicitness", "softmax", details=details)


def _one_hot(codes: np.ndarray) -> np.ndarray:
    """One column for each value of each latent."""
    return np.concatenate([column[:, None] == np.unique(column) for column in codes.T], axis=1).astype(np.float64)


def _positive(numbers: np.ndarray) -> np.ndarray:
    """1 in place of 0, to divide nothing by."""
    return np.where(numbers > 0, numbers, 1.0)
