r"""InfoMEC (hsu2023, section 4): modularity, explicitness and compactness, all as normalised information.

With N_{kj} = I(v_k; z_j) / H(v_k) over the active latents j = 1 … J and the factors k = 1 … K,

    modularity  (InfoM) = ( mean_j max_k N_{kj} / sum_k N_{kj} - 1/K ) / ( 1 - 1/K )
    compactness (InfoC) = ( mean_k max_j N_{kj} / sum_j N_{kj} - 1/J ) / ( 1 - 1/J )
    explicitness (InfoE) = mean_k ( 1 - H_V(v_k | z) / H_V(v_k) )

H_V is the predictive entropy of a linear predictor: the log loss of an unpenalised softmax regression on the whole
standardised code, with balanced classes, over the rows of its fit. Without a code it is the log of the number of
values. A latent is active if its range is more than 1/20 of the widest one.

| protocol    | estimate of I                                                                                    |
|-------------|--------------------------------------------------------------------------------------------------|
| `knn`       | 10 nearest neighbours (ross2014), for continuous latents                                         |
| `histogram` | 20 equal-width bins per latent, as in the histogram MIG                                          |
| `quantised` | each value of a latent is a bin, all latents that vary are active, and the predictor sees the    |
|             | value of each latent one-hot (for plain arrays of quantised codes)                               |

If the formulas divide by 0: a latent without information, or a factor that no latent knows, counts as evenly spread (0
after normalisation); a single active latent is fully compact; without any active latent all three are 0. The regression
is fitted to its optimum, while the authors stop after 100 steps, so that H_V of a perfect code is 0.

**Ceilings.** All three reach 1 under `knn` and `quantised`. Under `histogram` chance fills cells, so each latent seems
to know a little of every factor: InfoM and InfoC of a perfect code of sprites reach about .98 with 10,000 rows. InfoM
and InfoC are ratios and ignore amounts: under `knn`, which is at least 0, pure noise may look modular. Read them with
InfoE.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

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
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.content_cache import ContentCache
from unbraid.metrics.information.drawn_information import DrawnInformation, draw_information
from unbraid.metrics.information.histogram import JointHistograms, discretise, measure_half_information
from unbraid.metrics.information.nearest_neighbours import estimate_with_halves
from unbraid.metrics.intervals import FIT_ONCE, Range, halves_interval, measure_halves, no_interval, spread_at
from unbraid.metrics.predictive.dci import FAR_ROWS, MAX_KURTOSIS, measure_kurtosis
from unbraid.metrics.predictive.logistic import Classifiers, standardise
from unbraid.metrics.predictive.softmax import fit_softmax

Protocol = Literal["knn", "histogram", "quantised"]

MIN_ACTIVE_RANGE = 1 / 20
"""Share of the widest latent's range that an active latent exceeds."""

RIDGE = 1e-10
"""Penalty per row on the predictor's weights, so that it has an optimum even if values are separable."""

REFITS = 10
"""Halves of the rows to which the predictor is fitted again, at most."""

SHUFFLES = 20
"""Orders of the factors that measure the information of chance."""

Explicitness = tuple[np.ndarray, Range | None, str]
"""The share of each factor's entropy, the interval of their mean, and what it covers."""

_EXPLICITNESS = ContentCache[Explicitness](entries=4)
"""Results of predictors, for another protocol."""

infomec_metric = partial(
    code_metric,
    reference="hsu2023",
    needs=("factors",),
    bounds=(0, 1),
    invariant=("order", "sign"),  # which latents are active depends on their scales
    perfect=1.0,
    noise={"explicitness": 0.0},
    core_seconds=5.2,  # of both protocols, which share a predictor
)


@infomec_metric(
    "infomec/knn",
    "InfoMEC of continuous latents, by nearest neighbours.",
    settings="samples neighbours resamples",
    defaults={"resamples": 20},
)
@infomec_metric(
    "infomec/histogram",
    "InfoMEC with information by histograms.",
    settings="samples bins resamples",
    defaults={"resamples": 100},
)
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
    with_explicitness: bool = True,
    seed: int = 0,
) -> list[Score]:
    """Return modularity, explicitness and compactness of codes [rows, latents] and discrete factors [rows, factors].

    If there are more than `samples` rows, that many are drawn without repetition (None takes all). Explicitness takes
    most of the time and may be left out.

    The 95% intervals are for the mean of this procedure over draws of as many rows, from `resamples` random halves of
    the rows (20 under `knn`, 100 otherwise) by `drawn_information`; the predictor is fitted to 10 of them.
    """
    check_known("protocol", protocol, get_args(Protocol))
    check_at_least(2, bins=bins)
    check_at_least(1, neighbours=neighbours)
    values = to_matrix("codes", codes)
    labels = to_labels(factors, len(values), names)
    if len(labels.sizes) < 2:
        raise UsageError("InfoMEC compares factors with each other, but there is only one.")
    rng = np.random.default_rng(seed)
    if samples is not None and samples < len(values):
        rows = rng.choice(len(values), max(samples, 2), replace=False)
        values, labels = values[rows], to_labels(labels.values[rows], len(rows), labels.names)
    resamples = resamples if resamples is not None else 20 if protocol == "knn" else 100
    names, device, quantised = name_latents(values.shape[1], latents), find_device(codes), protocol == "quantised"
    width = np.ptp(values, axis=0)
    active = width > (0.0 if quantised else MIN_ACTIVE_RANGE) * width.max(initial=0.0)
    settings = {"bins": bins, "neighbours": neighbours, "resamples": resamples}
    measured = _measure_information(values, labels, protocol, rng, device, **settings)
    details: dict[str, Any] = {"active": [name for name, is_active in zip(names, active, strict=True) if is_active]}
    one_hot = (column[:, None] == np.unique(column) for column in values.T)
    inputs = np.concatenate(list(one_hot), axis=1).astype(np.float64) if quantised else values
    explicitness = (
        [_score_explicitness(protocol, inputs, labels, device, details, min(resamples, REFITS), seed)]
        if with_explicitness
        else []
    )
    entropies = _replace_zeros(labels.entropy)
    information = dict(zip(labels.names, (measured.information / entropies).T.tolist(), strict=True))
    details |= {"normalised_information": information, "latents": list(names)}
    scores = []
    for part, owners, choose in (
        ("modularity", details["active"], lambda one: (one / entropies)[active]),
        ("compactness", labels.names, lambda one: (one / entropies)[active].T),
    ):
        chosen = measured.select(choose)
        shares, value, drawn = find_shares(chosen.information), _measure_ratio(chosen.information), chosen.draw(rng)
        interval = drawn.find_spread(_measure_ratio).interval(value, (0.0, 1.0)) if drawn else None
        own = {"share": dict(zip(owners, shares.tolist(), strict=True)), **details}
        scores.append(
            Score("infomec", protocol, value, len(values), interval, part, details=own, covers=measured.covers)
        )
    return [scores[0], *explicitness, scores[1]]


class _Measured(NamedTuple):
    """I [latents, factors] of all rows and of pairs of halves, that of chance, and what an interval covers."""

    information: np.ndarray
    halves: Sequence[np.ndarray]
    chance: tuple[np.ndarray, np.ndarray] | None
    covers: str

    def select(self, choose: Callable[[np.ndarray], np.ndarray]) -> "_Measured":
        """Return the information of some latents in other units, or of factors about latents."""
        chance = self.chance and (choose(self.chance[0]), choose(self.chance[1]))
        return _Measured(choose(self.information), [choose(half) for half in self.halves], chance, self.covers)

    def draw(self, rng: np.random.Generator) -> DrawnInformation | None:
        """Draw the information of as many other rows; None without halves."""
        pairs = len(self.halves) > 1
        return draw_information(self.information, self.halves, self.chance, rng) if pairs else None


def _measure_information(
    values: np.ndarray,
    labels: FactorLabels,
    protocol: Protocol,
    rng: np.random.Generator,
    device: torch.device,
    *,
    bins: int,
    neighbours: int,
    resamples: int,
) -> _Measured:
    if protocol == "knn":
        jitter_seed, count = int(rng.integers(2**31)), resamples if len(values) >= 20 else 0
        whole, *halves = estimate_with_halves(values, labels, neighbours, count, rng, jitter_seed, device)
        covers = spread_at(len(values)) if halves else no_interval("it needs 20 rows and resamples=2 or more")
        return _Measured(whole[0], [information for information, _ in halves], None, covers)
    if protocol == "quantised":
        binned = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
        found = measure_half_information(binned, labels, None, resamples, rng, device)
    else:
        binned = discretise(values, bins)
        found = measure_half_information(values, labels, bins, resamples, rng, device)
    histograms = JointHistograms(binned, int(binned.max()) + 1, labels, device)
    ((information, _),) = histograms.informations([None])
    chance = histograms.measure_chance(SHUFFLES, rng) if found.drawn else None
    return _Measured(information, [half for half, _ in found.drawn], chance, found.covers)


def _measure_ratio(normalised: np.ndarray) -> float:
    """Return InfoM or InfoC from N [owners, others]."""
    return rescale_above_chance(find_shares(normalised), normalised.shape[1])


def find_shares(normalised: np.ndarray) -> np.ndarray:
    """Return each row's maximum over its sum, or an even share for a row without information."""
    if not normalised.size:
        return np.zeros(len(normalised))
    total = normalised.sum(1)
    informed = total > 1e-9  # rounding leaves 1e-16
    return np.where(informed, normalised.max(1) / _replace_zeros(total), 1 / normalised.shape[1])


def rescale_above_chance(shares: np.ndarray, others: int) -> float:
    """Return the mean share, rescaled so that an even share is 0 and a whole one 1."""
    if not len(shares) or others == 0:
        return 0.0
    return 1.0 if others == 1 else float(np.clip((shares.mean() - 1 / others) / (1 - 1 / others), 0, 1))


def _score_explicitness(
    protocol: Protocol,
    inputs: np.ndarray,
    labels: FactorLabels,
    device: torch.device,
    shared: dict[str, Any],
    resamples: int,
    seed: int,
) -> Score:
    """Return the share of each factor's entropy that a linear predictor removes, over the rows of its fit.

    It depends on no estimate of information, so protocols on the same rows share it.
    """
    parts = (inputs, labels.values, np.array([resamples, seed]))
    found = _EXPLICITNESS.get(
        parts, lambda: _fit_explicitness(inputs, labels, device, resamples, np.random.default_rng(seed))
    )
    by_factor, interval, covers = found
    details = {"of_factors": dict(zip(labels.names, by_factor.tolist(), strict=True)), **shared}
    value = float(by_factor.mean())
    return Score(
        "infomec", protocol, value, len(inputs), interval, "explicitness", "softmax", details=details, covers=covers
    )


def _fit_explicitness(
    inputs: np.ndarray, labels: FactorLabels, device: torch.device, resamples: int, rng: np.random.Generator
) -> Explicitness:
    codes = torch.as_tensor(inputs, device=device)
    by_factor, model = _measure_explicitness(codes, labels, None)

    def measure_half(rows: np.ndarray) -> float:
        some = labels.select(rows)
        return float(_measure_explicitness(codes[torch.as_tensor(rows, device=device)], some, model)[0].mean())

    value, why = float(by_factor.mean()), FIT_ONCE
    if measure_kurtosis(inputs).max() > MAX_KURTOSIS:
        resamples, why = 0, FAR_ROWS
    halves = measure_halves(measure_half, [len(inputs)], resamples, rng)
    interval = halves_interval(value, halves, (0.0, 1.0))
    covers = spread_at(len(inputs)) if interval else no_interval(why)
    return by_factor, interval, covers


def _measure_explicitness(
    codes: Tensor, labels: FactorLabels, start: Classifiers | None
) -> tuple[np.ndarray, Classifiers]:
    """Return the share of each factor [factors], at least 0 as a predictor may ignore the code, and the predictor."""
    (x,) = standardise(codes)
    precision = 1e-7 if start is None else 1e-5
    model = fit_softmax(x, labels.values, C=1 / (RIDGE * len(x)), balanced=True, precision=precision, start=start)
    shares = []
    for log_p, column, values, size in zip(
        model.log_probabilities(x), labels.values.T, model.values, labels.sizes, strict=True
    ):
        target = torch.as_tensor(np.searchsorted(values, column), device=x.device)[:, None]
        shares.append(1 + float(log_p.gather(1, target).mean()) / np.log(size))
    return np.array(shares).clip(0), model


def _replace_zeros(divisors: np.ndarray) -> np.ndarray:
    return np.where(divisors > 0, divisors, 1.0)
