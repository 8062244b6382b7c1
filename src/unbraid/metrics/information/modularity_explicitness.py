r"""Modularity and explicitness (ridgeway2018, section 2): two properties that a disentangled code should have.

**Modularity**: each latent tells of one factor at most. With m_{jk} = I(z_j; v_k) by histograms, a latent is held
against the template that keeps only its greatest entry:

    modularity_j = 1 - sum_{k != k(j)} m_{jk}^2 / ( (K - 1) m_{j k(j)}^2 ),    k(j) = argmax_k m_{jk}

and the score is the mean over latents. A latent that tells nothing, of which the template says nothing either, is left
out of it (and all of them: 0). It is a score of shape, not of amount: a latent of pure noise gets one, too.

**Explicitness**: each value of each factor can be read off the whole code by a linear classifier. For each value the
area under the ROC curve of "this value against the rest" on test rows, averaged over the values of a factor, then over
factors, and rescaled to 2 AUC - 1, so that chance is 0 and a perfect ranking 1 (the mean AUC itself is in the details).

| protocol                             | how                                                                        |
|--------------------------------------|----------------------------------------------------------------------------|
| `modularity/histogram-mean`          | 20 equal-width bins, 10,000 rows                                           |
| `modularity/disentanglement_lib`     | rows with replacement; a latent that tells nothing counts as 0             |
| `explicitness/logistic`              | a logistic regression per value, 10,000 rows to train, 5,000 others to test|
| `explicitness/disentanglement_lib`   | one softmax regression per factor, rows with replacement, AUC not rescaled |

**Ceilings.** Modularity reaches 1. One line per value cannot single out a value between others: of K equally spaced
values on a latent, value c gets an AUC of max(c, K - 1 - c)/(K - 1) at best, so `explicitness/logistic` of a perfect
code on one latent per factor is about .5 for many values (1 for two), and 1 where values have a latent or a direction
each. A softmax (`classifier="softmax"`) ranks them all and comes near 1.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from unbraid.errors import SettingError, UsageError
from unbraid.metrics.arrays import FactorLabels, label_matrix, latent_names, real_matrix
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.information.histogram import Cells, discretise
from unbraid.metrics.intervals import around, of_mean
from unbraid.metrics.predictive.logistic import Classifiers, one_vs_rest, softmax, standardised
from unbraid.metrics.train_test_split import Compat, TrainTestRows, apart, device_of, is_compat, redrawn, redrawn_sheet

Classifier = Literal["one-vs-rest", "softmax"]

INVARIANT = ("order", "sign", "scale")


@metric(
    "modularity/histogram-mean",
    year=2018,
    reference="ridgeway2018",
    needs=("factors",),
    bounds=(0, 1),
    invariant=INVARIANT,
    perfect=1.0,
)
def modularity_histogram(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    bins: int = 20,
    samples: int = 10_000,
    resamples: int = 100,
) -> Score:
    """Modularity of posterior means, by histograms."""
    sheet = evaluation.sheet(samples, factors)
    rows = np.arange(len(sheet.codes))
    named = sheet.names, sheet.latents
    rng = np.random.default_rng(evaluation.seed)
    return _modularity("histogram-mean", sheet.codes, sheet.factors, rows, bins, resamples, named, rng)


@metric(
    "modularity/disentanglement_lib",
    year=2019,
    reference="locatello2019",
    needs=("factors",),
    bounds=(0, 1),
    invariant=INVARIANT,
)
def modularity_disentanglement_lib(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    bins: int = 20,
    samples: int = 10_000,
    resamples: int = 100,
) -> Score:
    """Modularity as disentanglement_lib computes it: a latent that tells nothing counts as 0."""
    sheet, split = redrawn_sheet(evaluation, samples, 1, factors)
    named = sheet.names, sheet.latents
    rng = np.random.default_rng(evaluation.seed)
    return _modularity("disentanglement_lib", sheet.codes, sheet.factors, split.train, bins, resamples, named, rng)


@metric(
    "explicitness/logistic",
    year=2018,
    reference="ridgeway2018",
    needs=("factors",),
    bounds=(-1, 1),
    invariant=INVARIANT,
    noise=0.0,
)
def explicitness_logistic(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    classifier: Classifier = "one-vs-rest",
    train: int = 10_000,
    test: int = 5_000,
    C: float = 1.0,
) -> Score:
    """Explicitness: area under the ROC curve of linear classifiers on the whole code."""
    sheet = evaluation.sheet(train + test, factors)
    settings = {"classifier": classifier, "train": train, "test": test, "C": C}
    return explicitness(sheet.codes, sheet.factors, names=sheet.names, seed=evaluation.seed, **settings)


@metric(
    "explicitness/disentanglement_lib",
    year=2019,
    reference="locatello2019",
    needs=("factors",),
    bounds=(0, 1),
    invariant=INVARIANT,
    perfect=1.0,
    noise=0.5,
)
def explicitness_disentanglement_lib(
    evaluation: Evaluation, *, factors: tuple[str, ...] | None = None, train: int = 10_000, test: int = 5_000
) -> Score:
    """Explicitness as disentanglement_lib computes it: the mean area itself, by softmax regressions."""
    sheet, split = redrawn_sheet(evaluation, train, test, factors)
    return _explicitness("disentanglement_lib", sheet.codes, sheet.factors, split, "softmax", 1.0, sheet.names)


def modularity(
    codes: Any,
    factors: Any,
    *,
    bins: int = 20,
    samples: int | None = 10_000,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int = 100,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Modularity of any codes [rows, latents] and discrete factors [rows, factors], by histograms.

    Of more than `samples` rows that many are drawn (None takes all); with `compat` they are drawn with replacement, and
    a latent that tells nothing counts as 0 instead of being left out. The 95% interval is the value -+ 1.96 bootstrap
    standard errors.
    """
    rng = np.random.default_rng(seed)
    values = real_matrix("codes", codes)
    if samples is not None and samples < 2:
        raise SettingError(f"samples must be at least 2, not {samples}.")
    count = len(values) if samples is None else samples
    if is_compat(compat):
        rows = redrawn(len(values), count, 1, rng).train
    else:
        rows = rng.permutation(len(values))[:count] if count < len(values) else np.arange(len(values))
    return _modularity(compat or "histogram-mean", values, factors, rows, bins, resamples, (names, latents), rng)


def explicitness(
    codes: Any,
    factors: Any,
    *,
    classifier: Classifier = "one-vs-rest",
    train: int = 10_000,
    test: int = 5_000,
    C: float = 1.0,
    names: Sequence[str] | None = None,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Explicitness of any codes [rows, latents] and discrete factors [rows, factors].

    Codes are standardised on the training rows; a value that is in none or all of the test rows has no area and is left
    out. `compat` takes a softmax, draws both sets with replacement and gives the mean area without rescaling it.

    The 95% interval is that of the test rows (delong1988, for the mean of all areas); the classifiers are held fixed.
    """
    rng = np.random.default_rng(seed)
    if is_compat(compat):
        classifier, draw = "softmax", redrawn
    else:
        draw = apart
    if classifier not in ("one-vs-rest", "softmax"):
        raise UsageError(f"The classifier of explicitness must be one-vs-rest or softmax, not {classifier}.")
    split = draw(len(real_matrix("codes", codes)), train, test, rng)
    return _explicitness(compat or "logistic", codes, factors, split, classifier, C, names)


def _modularity(
    protocol: str,
    codes: Any,
    factors: Any,
    rows: np.ndarray,
    bins: int,
    resamples: int,
    named: tuple[Sequence[str] | None, Sequence[str] | None],
    rng: np.random.Generator,
) -> Score:
    if bins < 2:
        raise SettingError(f"bins must be at least 2, not {bins}.")
    values = real_matrix("codes", codes)
    labels = label_matrix(factors, len(values), named[0])
    if len(labels.sizes) < 2:
        raise UsageError("Modularity sets factors against each other, but there is only one.")
    labels, values = labels._replace(values=labels.values[rows]), values[rows]
    cells = Cells(discretise(values, bins), bins, labels, device_of(codes))
    information = cells.information()[0]
    dead = 0.0 if protocol == "disentanglement_lib" else None
    value, each = _from_information(information, dead)
    draws = [rng.integers(len(rows), size=len(rows)) for _ in range(resamples)]
    drawn = [one for one, _ in cells.informations(draws)]
    latents = latent_names(values.shape[1], named[1])
    details = {
        "modularity": dict(zip(latents, each, strict=True)),
        "information": dict(zip(labels.names, information.T.tolist(), strict=True)),
        "latents": list(latents),
        "bins": bins,
    }
    interval = around(value, [_from_information(one, dead)[0] for one in drawn], bounds=(0.0, 1.0))
    return Score("modularity", protocol, value, len(rows), interval, details=details)


def _from_information(information: np.ndarray, dead: float | None) -> tuple[float, list[float | None]]:
    """The mean, and each latent's modularity, from I [latents, factors]; `dead` is that of a latent without any."""
    squared = information**2
    greatest = squared.max(1)
    alive = information.max(1) > 1e-9  # rounding leaves 1e-16 where there is nothing
    others = (squared.sum(1) - greatest) / np.where(alive, greatest, 1.0)
    each = [1 - float(o) / (information.shape[1] - 1) if a else dead for o, a in zip(others, alive, strict=True)]
    counted = [one for one in each if one is not None]
    return float(np.mean(counted)) if counted else 0.0, each


def _explicitness(
    protocol: str,
    codes: Any,
    factors: Any,
    split: TrainTestRows,
    classifier: Classifier,
    C: float,
    names: Sequence[str] | None,
) -> Score:
    if not C > 0:
        raise SettingError(f"C must be greater than 0, not {C}.")
    values = real_matrix("codes", codes)
    labels = label_matrix(factors, len(values), names)
    tensors = (torch.as_tensor(values[rows], device=device_of(codes)) for rows in split)
    train, test = standardised(*tensors)
    fit = one_vs_rest if classifier == "one-vs-rest" else softmax
    model = fit(train, labels.values[split.train], C=C)
    areas, influence = _areas(_scores(model, test, classifier), model, labels, labels.values[split.test])
    mean = float(np.mean([np.mean(list(of.values())) for of in areas.values() if of] or [0.5]))
    scaled = protocol != "disentanglement_lib"
    details = {
        "mean_auc": mean,
        "auc": {name: float(np.mean(list(of.values()))) if of else None for name, of in areas.items()},
        "auc_of_values": {name: list(of.values()) for name, of in areas.items()},
        "train": len(split.train),
        "test": len(split.test),
    }
    value, bounds = (2 * mean - 1, (-1.0, 1.0)) if scaled else (mean, (0.0, 1.0))
    interval = of_mean(value + (2 if scaled else 1) * influence, bounds)
    used = len(split.train) + len(split.test)
    return Score("explicitness", protocol, value, used, interval, predictor=classifier, details=details)


def _scores(model: Classifiers, x: torch.Tensor, classifier: Classifier) -> np.ndarray:
    """What the rows are ranked by [rows, values of all factors]."""
    if classifier == "one-vs-rest":
        return model.logits(x).cpu().numpy()
    return torch.cat(model.log_probabilities(x), dim=1).cpu().numpy()


def _areas(
    scores: np.ndarray, model: Classifiers, labels: FactorLabels, truth: np.ndarray
) -> tuple[dict[str, dict[int, float]], np.ndarray]:
    """The area of each value of each factor, and how far each test row pulls their mean of means."""
    areas: dict[str, dict[int, float]] = {}
    pulls = []
    for k, name in enumerate(labels.names):
        found = {}
        for value, column in zip(model.values[k], scores[:, model.blocks[k]].T, strict=True):
            positive = truth[:, k] == value
            if 0 < positive.sum() < len(positive):
                area, pull = area_under_curve(column, positive)
                found[int(value)] = area, pull
        areas[name] = {value: area for value, (area, _) in found.items()}
        if found:
            pulls.append(np.mean([pull for _, pull in found.values()], axis=0))
    return areas, np.mean(pulls, axis=0) if pulls else np.zeros(len(truth))


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> tuple[float, np.ndarray]:
    """Chance that a positive row outranks a negative one, ties half, and each row's influence on it (delong1988)."""
    order = np.argsort(scores)
    sorted_scores, sorted_positive = scores[order], positive[order]
    first, last = (np.searchsorted(sorted_scores, sorted_scores, side=side) for side in ("left", "right"))
    below = np.concatenate([[0], np.cumsum(sorted_positive)])
    positives_below = (below[first] + below[last]) / 2
    negatives_below = (first + last) / 2 - positives_below
    count, rest = below[-1], len(scores) - below[-1]
    placement = np.where(sorted_positive, negatives_below / rest, 1 - positives_below / count)
    area = float(placement[sorted_positive].mean())
    influence = np.empty(len(scores))
    influence[order] = (placement - area) * len(scores) / np.where(sorted_positive, count, rest)
    return area, influence
