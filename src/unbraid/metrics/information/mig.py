r"""The mutual information gap (chen2018, section 4): does one latent, and only one, know each factor?

    MIG = 1/K sum_k [ I(z_{j(k)}; v_k) - max_{j != j(k)} I(z_j; v_k) ] / H(v_k),    j(k) = argmax_j I(z_j; v_k)

The number depends on how I is measured, so the protocol is part of its name:

| protocol            | what z is                    | how I is measured                                            |
|---------------------|------------------------------|--------------------------------------------------------------|
| `exact`             | the posterior itself, eq. 6  | quadrature over all rows; nothing is random                  |
| `chen2018`          | samples of each posterior    | Monte Carlo entropies over all rows (see `monte_carlo`)      |
| `histogram-mean`    | posterior means              | 20 equal-width bins per latent, 10,000 rows (locatello2019)  |
| `histogram-sampled` | one sample of each posterior | as above                                                     |
| `disentanglement_lib` | posterior means            | as `histogram-mean`, rows drawn with repetition              |

Twenty bins cannot tell 32 or 40 values apart, so a perfect code scores about .90 under a histogram; and a histogram of
means does not see how uncertain a code is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.metrics.arrays import (
    FactorLabels,
    check_at_least,
    choose_factors,
    entropy,
    find_device,
    name_latents,
    to_labels,
    to_matrix,
    to_normal_tensors,
    to_numpy,
)
from unbraid.metrics.base import LOCATELLO, Evaluation, Score, metric, metric_protocol
from unbraid.metrics.information.histogram import JointHistograms, discretise, find_bins
from unbraid.metrics.information.quadrature import integrate_information
from unbraid.metrics.intervals import resampling_interval
from unbraid.metrics.train_test_split import is_published
from unbraid.metrics.unsupervised.code_dependence import stack_normal_posteriors

Histogram = Literal["histogram-mean", "histogram-sampled"]

RANGE: dict[str, Any] = {"bounds": (0, 1), "noise": 0.0}
FACTS: dict[str, Any] = {"needs": ("factors",), **RANGE}
CHEN: dict[str, Any] = {"year": 2018, "reference": "chen2018"}
ALIKE: dict[str, Any] = {"invariant": ("order", "sign", "scale"), "perfect": 1.0}


@metric_protocol(
    "mig/histogram-mean", "Mutual information gap of posterior means, by histograms.", **CHEN, **ALIKE, **FACTS
)
@metric_protocol(
    "mig/histogram-sampled",
    "Mutual information gap of posterior samples, by histograms.",
    invariant=("scale",),  # each latent and each side of 0 meets its own noise
    **CHEN,
    **FACTS,
)
def by_histograms(
    evaluation: Evaluation,
    protocol: Histogram,
    *,
    factors: tuple[str, ...] | None = None,
    bins: int = 20,
    factor_bins: int | None = None,
    samples: int = 10_000,
    resamples: int = 100,
) -> Score:
    """Mutual information gap of codes, by histograms."""
    table = evaluation.tabulate(samples, factors, "mean" if protocol == "histogram-mean" else "sampled")
    settings = {"bins": bins, "factor_bins": factor_bins, "samples": samples, "resamples": resamples}
    return note_left_out(table.score(mig, protocol=protocol, **settings), evaluation)


@metric("mig/disentanglement_lib", **LOCATELLO, **ALIKE, **FACTS)
def disentanglement_lib(
    evaluation: Evaluation, *, factors: tuple[str, ...] | None = None, bins: int = 20, samples: int = 10_000
) -> Score:
    """Mutual information gap of posterior means of rows drawn with repetition, by histograms of 20 bins."""
    table = evaluation.tabulate(None, factors)
    return note_left_out(table.score(mig, bins=bins, samples=samples, compat="disentanglement_lib"), evaluation)


@metric("mig/exact", needs=("factors", "normal"), deterministic=True, **CHEN, **ALIKE, **RANGE)
def exact(evaluation: Evaluation, *, factors: tuple[str, ...] | None = None) -> Score:
    """Mutual information gap of the posteriors themselves, by quadrature over all rows."""
    means, stds = stack_normal_posteriors(evaluation)
    values, names = evaluation.choose_factors(factors)
    return note_left_out(mig_exact(means, stds, values, names=names, latents=evaluation.code_names), evaluation)


def mig(
    codes: Any,
    factors: Any,
    *,
    protocol: Histogram = "histogram-mean",
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    bins: int = 20,
    factor_bins: int | None = None,
    samples: int | None = 10_000,
    resamples: int = 100,
    compat: str | None = None,
    seed: int = 0,
) -> Score:
    """Mutual information gap of any codes [rows, latents] and factors [rows, factors], by histograms.

    `protocol` says what the codes are: means or samples of posteriors. Of more than `samples` rows that many are drawn
    without repetition (None takes all). `names` and `latents` name the columns in the score's details. A factor of
    more than `factor_bins` values, as a continuous one, is cut into that many bins of about as many rows each.

    `compat="disentanglement_lib"` draws `samples` rows with repetition, as its random factors do. chen2018's own
    protocol looks at posteriors: `mig_monte_carlo(means, stds, factors)`.

    The 95% interval is the value -+ 1.96 bootstrap standard errors.
    """
    if protocol not in ("histogram-mean", "histogram-sampled"):
        hint = "; use mig_exact(means, stds, factors)" if protocol == "exact" else ""
        raise UsageError(f"The protocol of mig must be histogram-mean or histogram-sampled, not {protocol}{hint}.")
    check_at_least(2, bins=bins, **({} if samples is None else {"samples": samples}))
    if compat == "chen2018":
        raise UsageError("The protocol of chen2018 looks at posteriors: mig_monte_carlo(means, stds, factors).")
    repeat, rng = is_published(compat), np.random.default_rng(seed)
    every, given = to_matrix("codes", codes), to_numpy(factors)
    refuse_single_latent(every)
    to_labels(given, len(every), names, bins=factor_bins)  # before rows are drawn, which may repeat
    values = every
    if samples is not None and (repeat or samples < len(every)):
        rows = rng.choice(len(every), samples, replace=repeat)
        values, given = every[rows], given[rows]
    labels = to_labels(given, len(values), names, bins=factor_bins)
    cells = JointHistograms(discretise(values, bins), bins, labels, find_device(codes))
    drawn = cells.informations([rng.integers(len(values), size=len(values)) for _ in range(resamples)])
    score = build_gap_score(
        compat or protocol, *cells.information(), labels, name_latents(values.shape[1], latents), len(values)
    )
    interval = resampling_interval(score.value, [_gaps(*one).mean() for one in drawn], bounds=(0.0, 1.0))
    return replace(
        score, interval=interval, details={**score.details, "bins": bins, "ceiling": compute_ceiling(labels, bins)}
    )


def compute_ceiling(labels: FactorLabels, bins: int) -> float:
    """The gap of a code that holds each factor's value, evenly spaced, in a latent of its own: mean of H(bin) / H(v).

    It is less than 1 where a factor has more values than there are bins.
    """
    kept = []
    for column, size in zip(labels.values.T, labels.sizes, strict=True):
        bin_of_value = find_bins(np.arange(size), 0.0, size - 1.0, bins)
        kept.append(entropy(np.bincount(bin_of_value, weights=np.bincount(column, minlength=size))))
    return float(np.mean(kept / labels.entropy))


def mig_exact(
    means: Any, stds: Any, factors: Any, *, names: Sequence[str] | None = None, latents: Sequence[str] | None = None
) -> Score:
    """Mutual information gap of Normal posteriors [rows, latents] and discrete factors, by quadrature over all rows.

    The rows are the whole population: nothing is drawn, and the interval is the value itself. `details` gives the
    spacing of each latent's grid. A CUDA tensor is worked on where it is.
    """
    centres, widths = to_normal_tensors(means, stds)
    refuse_single_latent(centres)
    labels = to_labels(factors, len(centres), names)
    named = name_latents(centres.shape[1], latents)
    values = torch.as_tensor(labels.values, device=centres.device)
    information = integrate_information(centres, widths, values, labels.sizes, named)
    score = build_gap_score("exact", information.matrix.numpy(), labels.entropy, labels, named, len(centres))
    details = {**score.details, "spacing": dict(zip(named, information.spacing.tolist(), strict=True))}
    return replace(score, interval=(score.value, score.value), details=details)


def restricted(score: Score, factors: Sequence[str]) -> Score:
    """The same gap over some of its factors only, from the score's details (chen2018 leaves shape out).

    An interval cannot be derived, except for `exact`, which needs none.
    """
    gaps = score.details["gaps"]
    kept = [list(gaps)[k] for k in choose_factors(list(gaps), factors)]
    value = float(np.mean([gaps[name] for name in kept]))
    details = {
        key: {name: part[name] for name in kept} if key in ("gaps", "entropy", "information", "winner") else part
        for key, part in score.details.items()
    }
    details["left_out"] = [*score.details.get("left_out", []), *(name for name in gaps if name not in kept)]
    return replace(score, value=value, interval=(value, value) if score.protocol == "exact" else None, details=details)


def refuse_single_latent(codes: np.ndarray | Tensor) -> None:
    """A gap needs a runner-up."""
    if codes.shape[1] < 2:
        raise UsageError(f"MIG sets the best latent against the second best, but there are {codes.shape[1]} latents.")


def _gaps(information: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """(best - second best) / H(v) [factors] from I [latents, factors]."""
    second, best = np.sort(information, axis=0)[-2:]
    return (best - second) / np.where(entropy > 0, entropy, 1.0)  # a resample may miss all but one value: then I = 0


def build_gap_score(
    protocol: str,
    information: np.ndarray,
    entropy: np.ndarray,
    labels: FactorLabels,
    latents: Sequence[str],
    samples: int,
) -> Score:
    gaps, names = _gaps(information, entropy), labels.names
    details = {
        "gaps": dict(zip(names, gaps.tolist(), strict=True)),
        "winner": {name: latents[j] for name, j in zip(names, information.argmax(0), strict=True)},
        "entropy": dict(zip(names, entropy.tolist(), strict=True)),
        "information": dict(zip(names, information.T.tolist(), strict=True)),
        "latents": list(latents),
    }
    return Score("mig", protocol, float(gaps.mean()), samples, details=details)


def note_left_out(score: Score, evaluation: Evaluation) -> Score:
    """Say which of the data set's factors the score does not look at."""
    others = [name for name in evaluation.dataset.factor_names if name not in score.details["gaps"]]
    return replace(score, details={**score.details, "left_out": others})
