r"""Downstream classification: accuracy of predictors of each factor that learn from few and from many labels.

For each number of labels L a classifier of each factor is trained on L rows and tested on 5,000 others. The score is
the mean accuracy over factors. **Efficiency** (locatello2019) is the accuracy with the fewest labels over that with the
most. Near 1, the code makes learning easy; it may exceed 1 by chance and does not depend on the level.

| protocol        | classifier                                                                                      |
|-----------------|-------------------------------------------------------------------------------------------------|
| `logistic`      | softmax regression (C = 1) on standardised codes                                                |
| `random-forest` | 30 trees: finds a factor anywhere in the code, linear or not                                    |

The training sets are nested, and the test rows are the same for all. If there are too few rows for the most labels, all
rows that are not for testing are used; `samples` and `labels` in the details state how many.

**Ceiling.** 1, but not for every predictor: a regularised softmax, linear in the code, cannot separate 32 or 40 values
on one latent (a perfect code of sprites: about .67 with 10,000 labels). A forest comes nearer (about .88).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch

from unbraid.errors import SettingError
from unbraid.metrics.arrays import check_known, find_device, to_labels, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.intervals import mean_interval, resampling_interval
from unbraid.metrics.predictive.booster import Target
from unbraid.metrics.predictive.logistic import fit_softmax, standardise
from unbraid.metrics.predictive.predictors import Problem, random_forest
from unbraid.metrics.train_test_split import count_draws, split_rows

Protocol = Literal["logistic", "random-forest"]

downstream_metric = partial(
    code_metric, reference="locatello2019", needs=("factors",), bounds=(0, float("inf"))
)  # efficiency is a ratio


@downstream_metric(
    "downstream/logistic",
    "Accuracy of softmax regression with few and many labels, and their ratio.",
    settings="labels test C",
    invariant=("order", "sign", "scale"),
)
@downstream_metric(
    "downstream/random-forest",
    "Accuracy of a random forest with few and many labels, and their ratio.",
    settings="labels test trees",
    cpu_only=True,
)
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
    """Return the accuracy on codes [rows, latents] and discrete factors [rows, factors] for each number of labels.

    With several numbers, the last score is the efficiency. The 95% intervals are over test rows, with the classifiers
    held fixed; that of the efficiency is a bootstrap.
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
    correct: dict[int, np.ndarray] = {}
    for size in sorted(set(sizes.values())):
        train, labelled = values[split.train[:size]], known.values[split.train[:size]]
        if protocol == "logistic":
            tensors = (torch.as_tensor(x, device=find_device(codes)) for x in (train, values[split.test]))
            x, x_test = standardise(*tensors)
            predicted = fit_softmax(x, labelled, C=C, precision=1e-9).predict(x_test)
        else:
            targets = [Target(column, int(column.max()) + 1) for column in labelled.T]
            fits = random_forest(Problem(train, values[split.test], targets, seed=seed, trees=trees))
            predicted = np.stack([fit.test for fit in fits], axis=1)
        correct[size] = predicted == truth  # [test, factors]
    scores = []
    for count, size in sizes.items():
        by_row, by_factor = correct[size].mean(1), dict(zip(known.names, correct[size].mean(0).tolist(), strict=True))
        details = {"accuracy": by_factor, "labels": size, "test": len(truth)}
        interval, part = mean_interval(by_row, (0.0, 1.0)), f"{count}-labels"
        scores.append(Score("downstream", protocol, float(by_row.mean()), size, interval, part, protocol, 0.0, details))
    if len(sizes) > 1:
        few, many = sizes[min(sizes)], sizes[max(sizes)]
        pair = np.stack([correct[few].mean(1), correct[many].mean(1)], axis=1)
        value = _divide(pair.mean(0))
        resampled = [_divide(one) for one in count_draws(len(truth), resamples, rng) @ pair]
        interval = resampling_interval(value, resampled, bounds=(0.0, float("inf")))
        details = {"few": few, "many": many, "test": len(pair)}
        scores.append(Score("downstream", protocol, value, many, interval, "efficiency", protocol, 0.0, details))
    return scores


def _divide(pair: np.ndarray) -> float:
    return float(pair[0] / pair[1]) if pair[1] > 0 else 0.0
