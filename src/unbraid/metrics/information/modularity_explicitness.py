r"""Modularity and explicitness (ridgeway2018, section 2): two properties that a disentangled code should have.

**Modularity**: each latent knows at most one factor. With m_{jk} = I(z_j; v_k) by histograms, a latent is compared with
the template that keeps only its greatest entry:

    modularity_j = 1 - sum_{k != k(j)} m_{jk}^2 / ( (K - 1) m_{j k(j)}^2 ),    k(j) = argmax_k m_{jk}

The score is the mean over latents, without those that have no information (0 if none has any). It measures shape, not
amount: pure noise has a modularity, too.

**Explicitness**: a linear classifier can read each value of each factor from the whole code. It is the area under the
ROC curve of "this value against the rest" on test rows, averaged over the values of a factor, then over factors, and
rescaled to 2 AUC - 1, so that chance is 0 and a perfect ranking 1 (`mean_auc` in the details is not rescaled).

| protocol                             | procedure                                                                  |
|--------------------------------------|----------------------------------------------------------------------------|
| `modularity/histogram-mean`          | 20 equal-width bins, 10,000 rows                                           |
| `modularity/disentanglement_lib`     | rows with replacement; a latent without information counts as 0            |
| `explicitness/logistic`              | a logistic regression per value, 10,000 rows to train, 5,000 others to test|
| `explicitness/disentanglement_lib`   | scikit-learn's logistic regression of the time (one-vs-rest by liblinear,  |
|                                      | shares of all values), rows with replacement, AUC not rescaled             |

**Ceilings.** Modularity reaches 1. One linear classifier per value cannot select a value between others: of K equally
spaced values on a latent, value c has an AUC of at most max(c, K - 1 - c)/(K - 1). So `explicitness/logistic` of a
perfect code with one latent per factor is about .5 for many values, 1 for two, and 1 if each value has a direction. A
softmax (`classifier="softmax"`) ranks all values and comes near 1.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from unbraid.errors import SettingError, UsageError
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
from unbraid.metrics.information.histogram import JointHistograms, discretise
from unbraid.metrics.intervals import FIT_ONCE, halves_share_interval, measure_halves, no_interval, spread_at
from unbraid.metrics.predictive.logistic import Classifiers, fit_one_vs_rest, standardise
from unbraid.metrics.predictive.softmax import fit_softmax
from unbraid.metrics.train_test_split import Compat, TrainTestRows, draw_rows, is_published, split_rows

NO_INTERVAL = no_interval(
    "chance sets the modularity of latents without information, and its spread is misjudged; see modularity/corrected"
)

Classifier = Literal["one-vs-rest", "softmax"]

shared_metric = partial(code_metric, needs=("factors",), invariant=("order", "sign", "scale"))
modularity_metric = partial(shared_metric, settings="bins samples", bounds=(0, 1))


@modularity_metric(
    "modularity/histogram-mean", "Modularity of posterior means, by histograms.", "ridgeway2018", perfect=1.0
)
@modularity_metric(
    "modularity/disentanglement_lib",
    "Modularity as disentanglement_lib computes it: a latent without information counts as 0.",
    "locatello2019",
)
def modularity(
    codes: Any,
    factors: Any,
    *,
    bins: int = 20,
    samples: int | None = 10_000,
    rows: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Return the modularity of codes [rows, latents] and discrete factors [rows, factors], by histograms.

    If there are more than `samples` rows, that many are drawn (None takes all), unless `rows` chooses them. With
    `compat` they are drawn with replacement, and a latent without information counts as 0 instead of being left out.
    There is no interval: chance decides the modularity of latents without information, and halves of the rows misjudge
    by how much. `modularity_corrected` has one.
    """
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    count = len(values) if samples is None else samples
    check_at_least(2, bins=bins, samples=count)
    published = is_published(compat)
    if rows is None and published:
        rows = draw_rows(len(values), count, 1, rng).train
    elif rows is None:
        rows = rng.permutation(len(values))[:count] if count < len(values) else np.arange(len(values))
    labels = to_labels(factors, len(values), names)
    if len(labels.sizes) < 2:
        raise UsageError("Modularity compares factors with each other, but there is only one.")
    labels, values = labels.select(rows), values[rows]
    information = JointHistograms(discretise(values, bins), bins, labels, find_device(codes)).information()[0]
    uninformed = 0.0 if published else None
    value, each = compute_modularity(information, uninformed)
    latents = name_latents(values.shape[1], latents)
    details = {
        "modularity": dict(zip(latents, each, strict=True)),
        "information": dict(zip(labels.names, information.T.tolist(), strict=True)),
        "latents": list(latents),
        "bins": bins,
    }
    return Score("modularity", compat or "histogram-mean", value, len(rows), details=details, covers=NO_INTERVAL)


@shared_metric(
    "explicitness/logistic",
    "Explicitness: area under the ROC curve of linear classifiers on the whole code.",
    "ridgeway2018",
    settings="classifier train test C resamples",
    core_seconds=0.8,
    bounds=(-1, 1),
    noise=0.0,
)
@shared_metric(
    "explicitness/disentanglement_lib",
    "Explicitness as disentanglement_lib computes it: the mean area itself.",
    "locatello2019",
    settings="train test resamples",
    bounds=(0, 1),
    noise=0.5,
)
def explicitness(
    codes: Any,
    factors: Any,
    *,
    classifier: Classifier = "one-vs-rest",
    train: int = 10_000,
    test: int = 5_000,
    rows: TrainTestRows | None = None,
    C: float = 1.0,
    names: Sequence[str] | None = None,
    resamples: int = 10,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Return the explicitness of codes [rows, latents] and discrete factors [rows, factors].

    `train` and `test` random rows are used, unless `rows` chooses them. Codes are standardised on the training rows. A
    value that is in none or all of the test rows has no area and is left out. `compat` draws both sets with replacement
    and does not rescale the mean area.

    The 95% interval is for the mean over draws of as many rows, from fits to random halves of both sets.
    """
    published, values, rng = is_published(compat), to_matrix("codes", codes), np.random.default_rng(seed)
    check_known("classifier", classifier, get_args(Classifier))
    if not C > 0:
        raise SettingError(f"C must be greater than 0, not {C}.")
    if rows is None:
        rows = (draw_rows if published else split_rows)(len(values), train, test, rng)
    labels = to_labels(factors, len(values), names)
    rank = _Ranking(values, labels, "liblinear" if published else classifier, C, find_device(codes))
    areas, model = rank.measure(rows.train, rows.test)
    mean = average_areas(areas)
    details = {
        "mean_auc": mean,
        "auc": {name: float(np.mean(list(of.values()))) if of else None for name, of in areas.items()},
        "auc_of_values": {name: list(of.values()) for name, of in areas.items()},
        "train": len(rows.train),
        "test": len(rows.test),
    }

    def measure_half(of_train: np.ndarray, of_test: np.ndarray) -> float:
        twice = rank._replace(C=2 * C)  # each row of a half counts twice against the penalty
        return average_areas(twice.measure(rows.train[of_train], rows.test[of_test], model)[0])

    halves = measure_halves(measure_half, [len(rows.train), len(rows.test)], resamples, rng)
    interval, used = halves_share_interval(mean, halves, len(rows.test)), len(rows.train) + len(rows.test)
    value = mean if published else 2 * mean - 1
    if interval is not None and not published:
        interval = 2 * interval[0] - 1, 2 * interval[1] - 1
    covers = spread_at(used) if interval else no_interval(FIT_ONCE)
    return Score(
        "explicitness",
        compat or "logistic",
        value,
        used,
        interval,
        None,
        rank.classifier,
        details=details,
        covers=covers,
    )


class _Ranking(NamedTuple):
    """Codes and factors of all rows, and the classifiers that rank rows by each value.

    `liblinear` is one-vs-rest with a penalty on the intercept, and ranks by the share of a value among all values.
    """

    codes: np.ndarray
    labels: FactorLabels
    classifier: Classifier | Literal["liblinear"]
    C: float
    device: torch.device

    def measure(
        self, train: np.ndarray, test: np.ndarray, start: Classifiers | None = None
    ) -> tuple[dict[str, dict[int, float]], Classifiers]:
        """Return the area of each value of each factor on test rows, and the classifiers."""
        x, x_test = standardise(*(torch.as_tensor(self.codes[part], device=self.device) for part in (train, test)))
        labels, precision = self.labels.values, 1e-12 if start is None else 1e-8
        settings: dict[str, Any] = {"C": self.C, "precision": precision, "start": start}
        if self.classifier == "softmax":
            model = fit_softmax(x, labels[train], **settings)
            ranked = torch.cat(model.log_probabilities(x_test), dim=1)
        else:
            published = self.classifier == "liblinear"
            model = fit_one_vs_rest(x, labels[train], free_intercept=not published, **settings)
            ranked = model.normalised_sigmoids(x_test) if published else model.logits(x_test)
        return _compute_areas(ranked, model, self.labels.names, labels[test]), model


def compute_modularity(information: np.ndarray, uninformed: float | None) -> tuple[float, list[float | None]]:
    """Return the mean and each latent's modularity from I [latents, factors].

    `uninformed` is the modularity of a latent without information; None leaves it out of the mean.
    """
    squared = information**2
    greatest = squared.max(1)
    informed = information.max(1) > 1e-9  # rounding leaves 1e-16
    others = (squared.sum(1) - greatest) / np.where(informed, greatest, 1.0) / (information.shape[1] - 1)
    each = [1 - float(other) if known else uninformed for other, known in zip(others, informed, strict=True)]
    counted = [one for one in each if one is not None]
    return float(np.mean(counted)) if counted else 0.0, each


def _compute_areas(
    scores: Tensor, model: Classifiers, names: Sequence[str], truth: np.ndarray
) -> dict[str, dict[int, float]]:
    """Return the area of each value that has one, from scores [rows, values of all factors] and labels `truth`."""
    columns = np.full(truth.shape, scores.shape[1])
    for k, (values, block) in enumerate(zip(model.values, model.blocks, strict=True)):
        place = np.searchsorted(values, truth[:, k]).clip(max=len(values) - 1)
        known = values[place] == truth[:, k]
        columns[known, k] = block.start + place[known]
    areas = compute_aucs(scores, torch.as_tensor(columns, device=scores.device)).tolist()
    return {
        name: {int(value): area for value, area in zip(values, areas[block], strict=True) if not math.isnan(area)}
        for name, values, block in zip(names, model.values, model.blocks, strict=True)
    }


def average_areas(areas: Mapping[str, Mapping[int, float]]) -> float:
    """Return the mean over factors of the mean area of their values, or .5 if no value has one."""
    return float(np.mean([np.mean(list(of.values())) for of in areas.values() if of] or [0.5]))


def compute_aucs(scores: Tensor, columns: Tensor) -> Tensor:
    """Return the area under the ROC curve of each column of scores [rows, columns].

    It is the chance that a positive row outranks another one (ties: half), or NaN where no row or every row is
    positive. `columns` [rows, factors] are the columns in which a row is positive, one per factor; for none, it is the
    number of columns.
    """
    rows, count = scores.shape
    column = columns.clamp(max=count - 1)
    own = scores.gather(1, column)
    higher = own.nextafter(torch.full_like(own, math.inf))
    below, up_to = _count_below(_sort_columns(scores), column, torch.stack([own, higher]))
    ranks = (below + up_to + 1).double() / 2
    totals = ranks.new_zeros(2, count + 1)
    totals.index_add_(1, columns.ravel(), torch.stack([ranks, torch.ones_like(ranks)]).flatten(1))
    rank_sum, positive = totals[:, :-1]
    return (rank_sum - positive * (positive + 1) / 2) / (positive * (rows - positive))


def _count_below(ordered: Tensor, column: Tensor, values: Tensor) -> Tensor:
    """Return how many numbers of its `column` each value exceeds, by bisection of sorted columns [columns, rows]."""
    rows = ordered.shape[1]
    first = column * rows
    last, below = first + rows - 1, (first - 1).expand_as(values)
    for power in reversed(range(rows.bit_length())):
        probe = torch.minimum(below + 2**power, last)
        below = torch.where(ordered.take(probe) < values, probe, below)
    return below + 1 - first


def _sort_columns(scores: Tensor) -> Tensor:
    """Return the columns of scores [rows, columns], each sorted [columns, rows]."""
    columns = scores.T.contiguous()
    if columns.is_cuda:
        return columns.sort().values
    return torch.from_numpy(np.sort(columns.numpy(), axis=1))  # three times as fast as torch on a CPU
