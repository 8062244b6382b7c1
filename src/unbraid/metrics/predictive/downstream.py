r"""Downstream classification: how well can each factor be learned from a code with few labels, and with many?

For each number of labels L a classifier of each factor is trained on L rows and tested on 5,000 other ones; the score
is the mean accuracy over factors. **Efficiency** (locatello2019) is the accuracy with the fewest labels over that with
the most: near 1, the code makes learning easy; it may exceed 1 by chance, and says nothing of the level.

| protocol        | classifier                                                                                      |
|-----------------|-------------------------------------------------------------------------------------------------|
| `logistic`      | softmax regression (C = 1) on standardised codes                                                |
| `random-forest` | 30 trees: finds a factor wherever it is in the code, linear or not                              |

The training sets are nested, and the test rows the same for all. Where there are not enough rows for the most labels,
all that are left over from testing are taken; `samples` and `labels` in the details say how many.

**Ceiling.** 1, but not for every predictor: a regularised softmax with a score linear in the code cannot tell 32 or 40
values on one latent apart (a perfect code of sprites: about .67 with 10,000 labels), a forest comes nearer (about .88).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch

from unbraid.errors import SettingError
from unbraid.metrics.arrays import check_known, find_device, to_labels, to_matrix
from unbraid.metrics.base import LOCATELLO, Evaluation, Score, metric
from unbraid.metrics.intervals import mean_interval, resampling_interval
from unbraid.metrics.predictive.booster import Target
from unbraid.metrics.predictive.logistic import fit_softmax, standardise
from unbraid.metrics.predictive.predictors import Problem
from unbraid.metrics.predictive.predictors import random_forest as fit_forests
from unbraid.metrics.train_test_split import count_draws, split_rows

Protocol = Literal["logistic", "random-forest"]


FACTS: dict[str, Any] = {"needs": ("factors",), "bounds": (0, float("inf"))}  # efficiency is a ratio


@metric("downstream/logistic", invariant=("order", "sign", "scale"), **LOCATELLO, **FACTS)
def logistic(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    labels: tuple[int, ...] = (100, 1_000, 10_000),
    test: int = 5_000,
    C: float = 1.0,
) -> list[Score]:
    """Accuracy of softmax regression with few and many labels, and their ratio."""
    table = evaluation.tabulate(max(labels, default=0) + test, factors)
    return table.score(downstream, protocol="logistic", labels=labels, test=test, C=C)


@metric("downstream/random-forest", cpu_only=True, **LOCATELLO, **FACTS)
def random_forest(
    evaluation: Evaluation,
    *,
    factors: tuple[str, ...] | None = None,
    labels: tuple[int, ...] = (100, 1_000, 10_000),
    test: int = 5_000,
    trees: int = 30,
) -> partial[list[Score]]:
    """Accuracy of a random forest with few and many labels, and their ratio."""
    table = evaluation.tabulate(max(labels, default=0) + test, factors)
    return table.defer(downstream, protocol="random-forest", labels=labels, test=test, trees=trees)


def downstream(
    codes: Any,
    factors: Any,
    *,
    protocol: Protocol = "logistic",
    labels: Sequence[int] = (100, 1_000, 10_000),
    test: int = 5_000,
    C: float = 1.0,
    trees: int = 30,
    names: Sequence[str] | None = None,
    resamples: int = 200,
    seed: int = 0,
) -> list[Score]:
    """Accuracy on any codes [rows, latents] and discrete factors [rows, factors] with each number of labels.

    Also the efficiency, if there are several. The 95% intervals are those of the test rows, with the classifiers held
    fixed; of the efficiency, by bootstrap.
    """
    check_known("protocol", protocol, get_args(Protocol))
    if not labels or min(labels) < 2 or not C > 0 or trees < 1:
        raise SettingError(f"labels must be 2 or more, C above 0 and trees 1 or more, not {labels}, {C} and {trees}.")
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    known = to_labels(factors, len(values), names)
    split = split_rows(len(values), max(labels), test, rng)
    sizes = {count: min(count, len(split.train)) for count in labels}
    truth = known.values[split.test]
    right: dict[int, np.ndarray] = {}
    for size in sorted(set(sizes.values())):
        train, labelled = values[split.train[:size]], known.values[split.train[:size]]
        if protocol == "logistic":
            tensors = (torch.as_tensor(x, device=find_device(codes)) for x in (train, values[split.test]))
            x, x_test = standardise(*tensors)
            predicted = fit_softmax(x, labelled, C=C, precision=1e-9).predict(x_test)
        else:
            targets = [Target(column, int(column.max()) + 1) for column in labelled.T]
            fits = fit_forests(Problem(train, values[split.test], targets, seed=seed, trees=trees))
            predicted = np.stack([fit.test for fit in fits], axis=1)
        right[size] = predicted == truth  # [test, factors]
    scores = []
    for count, size in sizes.items():
        by_row, by_factor = right[size].mean(1), right[size].mean(0)
        details = {"accuracy": dict(zip(known.names, by_factor.tolist(), strict=True)), "labels": size}
        details["test"] = len(truth)
        interval, part = mean_interval(by_row, (0.0, 1.0)), f"{count}-labels"
        scores.append(Score("downstream", protocol, float(by_row.mean()), size, interval, part, protocol, 0.0, details))
    return [*scores, *_efficiency(protocol, sizes, right, count_draws(len(truth), resamples, rng))]


def _efficiency(
    protocol: Protocol, sizes: dict[int, int], right: dict[int, np.ndarray], drawn: np.ndarray
) -> list[Score]:
    """Accuracy with the fewest labels over that with the most; none if there is only one number of labels."""
    if len(sizes) < 2:
        return []
    few, many = sizes[min(sizes)], sizes[max(sizes)]
    pair = np.stack([right[few].mean(1), right[many].mean(1)], axis=1)
    value = _ratio(pair.mean(0))
    interval = resampling_interval(value, [_ratio(one) for one in drawn @ pair], bounds=(0.0, float("inf")))
    details = {"few": few, "many": many, "test": len(pair)}
    return [Score("downstream", protocol, value, many, interval, "efficiency", protocol, 0.0, details)]


def _ratio(pair: np.ndarray) -> float:
    return float(pair[0] / pair[1]) if pair[1] > 0 else 0.0
