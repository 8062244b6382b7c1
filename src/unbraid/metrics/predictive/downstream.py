r"""Downstream classification: accuracy of predictors of each factor that learn from few and from many labels.

For each number of labels L a classifier of each factor is trained on L rows and tested on 5,000 others. The score is
the mean accuracy over factors. **Efficiency** (locatello2019) is the accuracy with the fewest labels over that with the
most. Near 1, the code makes learning easy; it may exceed 1 by chance and does not depend on the level.

| protocol        | classifier                                                                                      |
|-----------------|-------------------------------------------------------------------------------------------------|
| `logistic`      | softmax regression (C = 1) on standardised codes                                                |
| `random-forest` | 30 trees: finds a factor anywhere in the code, linear or not; scikit-learn's, or on CUDA ours,  |
|                 | which is the same algorithm with other random numbers                                           |

The training sets are nested, and the test rows are the same for all. If there are too few rows for the most labels, all
rows that are not for testing are used, and the score is named by their number (`6667-labels`).

**Ceiling.** 1, but not for every predictor: a regularised softmax, linear in the code, cannot separate 32 or 40 values
on one latent (a perfect code of sprites: about .67 with 10,000 labels). A forest comes nearer (about .88).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from unbraid.errors import SettingError
from unbraid.metrics.arrays import check_known, find_device, to_labels, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.intervals import FIT_ONCE, Spread, draw_halves, measure_draws, no_interval, spread_at
from unbraid.metrics.levels import share_of_most_frequent
from unbraid.metrics.predictive.booster import Target
from unbraid.metrics.predictive.logistic import Classifiers, standardise
from unbraid.metrics.predictive.predictors import Problem, random_forest
from unbraid.metrics.predictive.softmax import fit_softmax_each
from unbraid.metrics.train_test_split import split_rows

Protocol = Literal["logistic", "random-forest"]

downstream_metric = partial(
    code_metric, levels=False, reference="locatello2019", needs=("factors",), bounds=(0, float("inf"))
)  # efficiency is a ratio


@downstream_metric(
    "downstream/logistic",
    "Accuracy of softmax regression with few and many labels, and their ratio.",
    settings="labels test C resamples",
    invariant=("order", "sign", "scale"),
    core_seconds=3.2,
)
@downstream_metric(
    "downstream/random-forest",
    "Accuracy of a random forest with few and many labels, and their ratio.",
    settings="labels test trees resamples",
    defaults={"resamples": 0},
    core_seconds=5.0,
    prefers_gpu=True,
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
    resamples: int = 10,
    seed: int = 0,
) -> list[Score]:
    """Return the accuracy on codes [rows, latents] and discrete factors [rows, factors] for each number of labels.

    The name of a score states the labels that there were. With several numbers, the last score is the efficiency. The
    95% intervals are for means over draws of as many rows, from `resamples` fits to halves of the training rows.
    """
    check_known("protocol", protocol, get_args(Protocol))
    if not labels or min(labels) < 2 or not C > 0 or trees < 1:
        raise SettingError(f"labels must be 2 or more, C above 0 and trees 1 or more, not {labels}, {C} and {trees}.")
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    known = to_labels(factors, len(values), names)
    split = split_rows(len(values), max(labels), test, rng)
    sizes = sorted({min(count, len(split.train)) for count in labels})
    predict = _Prediction(values, known.values, protocol, C, trees, seed, find_device(codes))
    fits = [predict.measure([split.train[:size]], split.test) for size in sizes]
    correct = [hits for ((hits, _),) in fits]  # each [test, factors]
    drawn = draw_halves([len(split.train)], resamples, rng)
    refits = np.empty((len(drawn), len(sizes), len(split.test)))
    for place, size in enumerate(sizes):
        some = [split.train[half][:size] for (half,) in drawn]
        start = fits[-1][0][1] if size == sizes[-1] else None  # which has seen every value
        rows = len(some[0]) if some else size
        alike = predict._replace(C=C * size / rows)  # rows count as much against the penalty as all do
        for draw, (hits, _) in enumerate(alike.measure(some, split.test, start)):
            refits[draw, place] = hits.mean(1)
    shares = [min(size, len(split.train) // 2) / size for size in sizes]
    covers = spread_at(len(split.train) + len(split.test)) if len(refits) > 1 else no_interval(FIT_ONCE)
    scores, chance = [], share_of_most_frequent(known.values[split.test])
    for place, (size, hits) in enumerate(zip(sizes, correct, strict=True)):
        by_factor = dict(zip(known.names, hits.mean(0).tolist(), strict=True))
        details: dict[str, Any] = {"accuracy": by_factor, "labels": size, "test": len(split.test), "chance": chance}
        if protocol == "random-forest":
            details["device"] = predict.device.type  # a GPU grows other trees
        value, part = float(hits.mean()), f"{size}-labels"
        spread = Spread.of_refits(hits.mean(1), refits[:, place], shares[place])
        interval = spread and spread.share_interval(value, len(split.test))
        scores.append(
            Score("downstream", protocol, value, size, interval, part, protocol, details=details, covers=covers)
        )
    if len(sizes) > 1:
        few, many = correct[0].mean(), correct[-1].mean()
        details = {"few": sizes[0], "many": sizes[-1], "test": len(split.test)}
        value = _divide(few, many)
        rows = np.stack([hits.mean(1) for hits in correct])  # [sizes, test]
        first, last = ([of[..., place, :] / max(many, 1e-12) for of in (rows, refits)] for place in (0, -1))
        own, others = (few - value * many for few, many in zip(first, last, strict=True))
        spread = Spread.of_refits(own, others, shares[0])  # the fit to few labels varies most
        interval = spread and spread.interval(value, (0.0, float("inf")))
        part, used = "efficiency", sizes[-1]
        scores.append(
            Score("downstream", protocol, value, used, interval, part, protocol, details=details, covers=covers)
        )
    return scores


class _Prediction(NamedTuple):
    """Codes and factors [rows, …] of all rows, and the classifier."""

    codes: np.ndarray
    labels: np.ndarray
    protocol: Protocol
    C: float
    trees: int
    seed: int
    device: torch.device

    def measure(
        self, train: Sequence[np.ndarray], test: np.ndarray, start: Classifiers | None = None
    ) -> list[tuple[np.ndarray, Classifiers | None]]:
        """Fit to each set of rows; return which predictions are right [test, factors], and the model of a regression.

        A GPU fits regressions to all sets at once, and a CPU uses as many threads as torch does.
        """
        if self.protocol == "random-forest":
            return measure_draws(lambda rows: (self._grow(rows, test), None), [(rows,) for rows in train])
        if self.device.type == "cuda":
            return self._regress(train, test, start) if train else []
        return measure_draws(lambda rows: self._regress([rows], test, start)[0], [(rows,) for rows in train])

    def _grow(self, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        targets = [Target(column, int(column.max()) + 1) for column in self.labels[train].T]
        codes = self.codes[train], self.codes[test]
        problem = Problem(*codes, targets, seed=self.seed, device=self.device, trees=self.trees)
        return np.stack([fit.test for fit in random_forest(problem)], axis=1) == self.labels[test]

    def _regress(
        self, train: Sequence[np.ndarray], test: np.ndarray, start: Classifiers | None
    ) -> list[tuple[np.ndarray, Classifiers | None]]:
        codes = torch.as_tensor(self.codes, device=self.device)
        pairs = [standardise(codes[torch.as_tensor(rows)], codes[torch.as_tensor(test)]) for rows in train]
        precision = 1e-9 if start is None else 1e-7
        labels = [self.labels[rows] for rows in train]
        models = fit_softmax_each([x for x, _ in pairs], labels, C=self.C, precision=precision, start=start)
        right = [model.predict(x_test) == self.labels[test] for model, (_, x_test) in zip(models, pairs, strict=True)]
        return list(zip(right, models, strict=True))


def _divide(few: float, many: float) -> float:
    return float(few / many) if many > 0 else 0.0
