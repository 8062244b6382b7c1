r"""The mutual information gap (chen2018, section 4): is each factor known to one latent, and only one?

    MIG = 1/K sum_k [ I(z_{j(k)}; v_k) - max_{j != j(k)} I(z_j; v_k) ] / H(v_k),    j(k) = argmax_j I(z_j; v_k)

The number depends on how I is measured, so the protocol is part of its name:

| protocol            | z                            | estimate of I                                                |
|---------------------|------------------------------|--------------------------------------------------------------|
| `exact`             | the posterior itself, eq. 6  | quadrature over all rows; nothing is random                  |
| `chen2018`          | samples of each posterior    | Monte Carlo entropies over all rows (`mig_monte_carlo`)      |
| `histogram-mean`    | posterior means              | 20 equal-width bins per latent, 10,000 rows (locatello2019)  |
| `histogram-sampled` | one sample of each posterior | as above                                                     |
| `disentanglement_lib` | posterior means            | as `histogram-mean`, rows drawn with repetition              |

Twenty bins cannot separate 32 or 40 values, so a perfect code scores about .90 under a histogram. A histogram of means
ignores the uncertainty of a code.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
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
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.information.histogram import JointHistograms, discretise, find_bins, measure_half_information
from unbraid.metrics.information.quadrature import integrate_information
from unbraid.metrics.intervals import EXACT, halves_interval, no_interval
from unbraid.metrics.levels import add_levels
from unbraid.metrics.train_test_split import is_published
from unbraid.metrics.unsupervised.code_dependence import stack_normal_posteriors

Histogram = Literal["histogram-mean", "histogram-sampled"]

UNKNOWN_OF_SOME = no_interval("that of some factors cannot be derived from that of all")

RANGE: dict[str, Any] = {"bounds": (0, 1), "noise": 0.0}
FACTS: dict[str, Any] = {"needs": ("factors",), **RANGE}
PERFECT: dict[str, Any] = {"invariant": ("order", "sign", "scale"), "perfect": 1.0}


def note_left_out(score: Score, evaluation: Evaluation) -> Score:
    """Add the data set's factors that the score does not look at to its details."""
    others = [name for name in evaluation.dataset.factor_names if name not in score.details["gaps"]]
    return replace(score, details={**score.details, "left_out": others})


histogram_metric = partial(
    code_metric,
    reference="chen2018",
    settings="bins factor_bins samples resamples",
    annotate=note_left_out,
    core_seconds=0.35,
    **FACTS,
)


@metric("mig/disentanglement_lib", reference="locatello2019", **PERFECT, **FACTS)
def disentanglement_lib(
    evaluation: Evaluation, *, factors: tuple[str, ...] | None = None, bins: int = 20, samples: int = 10_000
) -> Score:
    """Mutual information gap of posterior means of rows drawn with repetition, by histograms of 20 bins."""
    table = evaluation.tabulate(None, factors)
    settings: dict[str, Any] = {"bins": bins, "samples": samples, "compat": "disentanglement_lib"}
    (score,) = add_levels(table.score(mig, **settings), table, mig, settings)
    return note_left_out(score, evaluation)


@metric("mig/exact", reference="chen2018", needs=("factors", "normal"), deterministic=True, **PERFECT, **RANGE)
def exact(evaluation: Evaluation, *, factors: tuple[str, ...] | None = None) -> Score:
    """Mutual information gap of the posteriors themselves, by quadrature over all rows."""
    means, stds = stack_normal_posteriors(evaluation)
    values, names = evaluation.choose_factors(factors)
    labels = evaluation.share(("labels", *names), lambda: to_labels(values, len(means), names))
    return note_left_out(mig_exact(means, stds, labels, latents=evaluation.code_names), evaluation)


@histogram_metric("mig/histogram-mean", "Mutual information gap of posterior means, by histograms.", **PERFECT)
@histogram_metric(
    "mig/histogram-sampled",
    "Mutual information gap of posterior samples, by histograms.",
    codes="sampled",
    invariant=("scale",),  # each latent and each side of 0 meets its own noise
)
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
    """Return the mutual information gap of codes [rows, latents] and factors [rows, factors], by histograms.

    `protocol` says what the codes are: means or samples of posteriors. If there are more than `samples` rows, that many
    are drawn without repetition (None takes all). `names` and `latents` name the columns in the details. A factor with
    more than `factor_bins` values, such as a continuous one, is cut into bins with about equally many rows.

    `compat="disentanglement_lib"` draws `samples` rows with repetition, as that library does. The protocol of chen2018
    needs posteriors: `mig_monte_carlo(means, stds, factors)`.

    The 95% interval is for the mean of this procedure over draws of as many rows ("spread at n rows"), from random
    halves of the rows with bins of their own. `mig_corrected` has an interval for the value over all rows.
    """
    if protocol not in ("histogram-mean", "histogram-sampled"):
        hint = "; use mig_exact(means, stds, factors)" if protocol == "exact" else ""
        raise UsageError(f"The protocol of mig must be histogram-mean or histogram-sampled, not {protocol}{hint}.")
    check_at_least(2, bins=bins, **({} if samples is None else {"samples": samples}))
    if compat == "chen2018":
        raise UsageError("compat=chen2018 needs posteriors: call mig_monte_carlo(means, stds, factors).")
    repeat, rng = is_published(compat), np.random.default_rng(seed)
    values, table = to_matrix("codes", codes), to_numpy(factors)
    refuse_single_latent(values)
    labels = to_labels(table, len(values), names, bins=factor_bins)  # checks the rows before some are drawn
    if samples is not None and (repeat or samples < len(values)):
        rows = rng.choice(len(values), samples, replace=repeat)
        values = values[rows]
        labels = to_labels(table[rows], len(values), names, bins=factor_bins)
    information, entropies = JointHistograms(discretise(values, bins), bins, labels, find_device(codes)).information()
    halves = measure_half_information(values, labels, bins, resamples, rng, find_device(codes))
    named = name_latents(values.shape[1], latents)
    score = build_gap_score(compat or protocol, information, entropies, labels, named)
    interval = halves_interval(score.value, [compute_gaps(*one).mean() for one in halves.drawn], (0.0, 1.0))
    details = {**score.details, "bins": bins, "ceiling": compute_ceiling(labels, bins)}
    return replace(score, interval=interval, details=details, covers=halves.covers)


def compute_ceiling(labels: FactorLabels, bins: int) -> float:
    """Return the gap of a perfect code, one latent with evenly spaced values per factor: the mean of H(bin) / H(v).

    It is below 1 if a factor has more values than there are bins.
    """
    entropies = []
    for column, size in zip(labels.values.T, labels.sizes, strict=True):
        bin_of_value = find_bins(np.arange(size), 0.0, size - 1.0, bins)
        entropies.append(entropy(np.bincount(bin_of_value, weights=np.bincount(column, minlength=size))))
    return float(np.mean(entropies / labels.entropy))


def mig_exact(
    means: Any, stds: Any, factors: Any, *, names: Sequence[str] | None = None, latents: Sequence[str] | None = None
) -> Score:
    """Return the mutual information gap of Normal posteriors [rows, latents] and discrete factors, by quadrature.

    The rows are the whole population: nothing is drawn, and the interval is the value itself. `details` holds the
    spacing of each latent's grid. CUDA tensors stay on their device.
    """
    centres, widths = to_normal_tensors(means, stds)
    refuse_single_latent(centres)
    labels = to_labels(factors, len(centres), names)
    named = name_latents(centres.shape[1], latents)
    information = integrate_information(centres, widths, labels.on(centres.device), labels.sizes, named)
    score = build_gap_score("exact", information.matrix.numpy(), labels.entropy, labels, named)
    details = {**score.details, "spacing": dict(zip(named, information.spacing.tolist(), strict=True))}
    return replace(score, interval=(score.value, score.value), details=details, covers=EXACT)


def restricted(score: Score, factors: Sequence[str]) -> Score:
    """Return the gap over some of its factors, from the score's details (chen2018 leaves out shape).

    Only `exact` keeps an interval; that of other protocols cannot be derived.
    """
    gaps = score.details["gaps"]
    chosen = [list(gaps)[k] for k in choose_factors(list(gaps), factors)]
    value = float(np.mean([gaps[name] for name in chosen]))
    details = {
        key: {name: part[name] for name in chosen} if key in ("gaps", "entropy", "information", "winner") else part
        for key, part in score.details.items()
    }
    details["left_out"] = [*score.details.get("left_out", []), *(name for name in gaps if name not in chosen)]
    exact = score.protocol == "exact"
    interval, covers = ((value, value), EXACT) if exact else (None, UNKNOWN_OF_SOME)
    return replace(score, value=value, interval=interval, details=details, covers=covers, chance=None, ceiling=None)


def refuse_single_latent(codes: np.ndarray | Tensor) -> None:
    if codes.shape[1] < 2:
        raise UsageError("MIG compares the best latent with the second best, but there is only 1 latent.")


def compute_gaps(information: np.ndarray, entropies: np.ndarray) -> np.ndarray:
    """Return (best - second best) / H(v) [factors] from I [latents, factors]."""
    second, best = np.sort(information, axis=0)[-2:]
    return (best - second) / np.where(entropies > 0, entropies, 1.0)  # a resample may hold one value: then I = 0


def build_gap_score(
    protocol: str, information: np.ndarray, entropies: np.ndarray, labels: FactorLabels, latents: Sequence[str]
) -> Score:
    """Return the score without an interval, from I [latents, factors] and H(v) [factors]."""
    gaps, names = compute_gaps(information, entropies), labels.names
    details = {
        "gaps": dict(zip(names, gaps.tolist(), strict=True)),
        "winner": {name: latents[j] for name, j in zip(names, information.argmax(0), strict=True)},
        "entropy": dict(zip(names, entropies.tolist(), strict=True)),
        "information": dict(zip(names, information.T.tolist(), strict=True)),
        "latents": list(latents),
    }
    return Score("mig", protocol, float(gaps.mean()), len(labels.values), details=details)
