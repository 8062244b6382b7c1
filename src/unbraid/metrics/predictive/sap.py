r"""The separated attribute predictability score (kumar2018, section 3): is each factor predicted by one latent only?

    SAP = 1/K sum_k [ S_{j(k) k} - max_{j != j(k)} S_{jk} ],    j(k) = argmax_j S_{jk}

S_{jk} measures the prediction of factor k from latent j: the test accuracy of a linear support vector machine (C = .01,
balanced classes, one value against the rest), or the squared correlation for a continuous factor.

| protocol             | rows                                                                                     |
|----------------------|------------------------------------------------------------------------------------------|
| `linear-svm`         | 10,000 to train and 5,000 others to test                                                 |
| `disentanglement_lib`| 10,000 and 5,000, each drawn with replacement (locatello2019)                            |

Squared correlations are those of the training rows.

**Ceiling.** A linear classifier of one value against the rest cannot select a value between others, so the best latent
of a factor with K equally spaced values is right for few of them. A perfect code of sprites scores about .25, mostly
from factors with few values. Codes are not rescaled, and the penalty makes the score depend on their scale.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from unbraid.errors import DataError, UsageError
from unbraid.metrics.arrays import name_latents, to_factor_table, to_matrix
from unbraid.metrics.base import Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.factor_types import FactorColumn, parse_factors
from unbraid.metrics.intervals import Spread, draw_halves, halve_again, measure_draws, no_interval, spread_at
from unbraid.metrics.predictive.linear_svm import SortedTable, fit_lines
from unbraid.metrics.train_test_split import Compat, TrainTestRows, draw_rows, is_published, split_rows

PENALTY = 0.01
"""C, the weight of a row's loss against the penalty."""

sap_metric = partial(
    code_metric,
    settings="continuous train test resamples",
    needs=("factors",),
    bounds=(0, 1),
    invariant=("order", "sign"),
    noise=0.0,
    core_seconds=0.7,
)


@sap_metric("sap/linear-svm", "Separated attribute predictability by linear support vector machines.", "kumar2018")
@sap_metric(
    "sap/disentanglement_lib",
    "Separated attribute predictability as disentanglement_lib draws its rows.",
    "locatello2019",
)
def sap(
    codes: Any,
    factors: Any,
    *,
    train: int = 10_000,
    test: int = 5_000,
    rows: TrainTestRows | None = None,
    continuous: Sequence[str] = (),
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    resamples: int = 40,
    seed: int = 0,
    compat: Compat | None = None,
) -> Score:
    """Return the separated attribute predictability of codes [rows, latents] and factors [rows, factors].

    Fewer than `train` + `test` rows are divided in that proportion; `rows` chooses rows instead. `continuous` names
    factors that are scored by squared correlation. `compat="disentanglement_lib"` draws both sets with replacement.

    The 95% interval is for the mean over draws of as many rows, from fits to random halves and quarters of both sets,
    in which each row counts twice and four times. The variance falls with 1/n or more slowly, since few rows decide
    which values a machine ever predicts (`Spread.of_shrinking`).
    """
    rng = np.random.default_rng(seed)
    values = to_matrix("codes", codes)
    if rows is None:
        rows = (draw_rows if is_published(compat) else split_rows)(len(values), train, test, rng)
    if values.shape[1] < 2:
        raise UsageError("SAP compares the best latent with the second best, but there is only 1 latent.")
    latents = name_latents(values.shape[1], latents)
    columns = parse_factors(to_factor_table(factors, len(values)), names, continuous, detect=False)
    names = [column.name for column in columns]
    _refuse_constant(columns, rows.train)
    prediction = _Prediction(values, columns, rows)
    scores = prediction.measure(np.arange(len(rows.train)), np.arange(len(rows.test)))
    gaps = _compute_gaps(scores)
    details = {
        "gaps": dict(zip(names, gaps.tolist(), strict=True)),
        "winner": {name: latents[j] for name, j in zip(names, scores.argmax(0), strict=True)},
        "scores": dict(zip(names, scores.T.tolist(), strict=True)),
        "latents": list(latents),
        "train": len(rows.train),
        "test": len(rows.test),
    }

    def measure_half(of_train: np.ndarray, of_test: np.ndarray) -> float:
        return float(_compute_gaps(prediction.measure(of_train, of_test)).mean())

    value, used = float(gaps.mean()), len(rows.train) + len(rows.test)
    drawn = draw_halves([len(rows.train), len(rows.test)], resamples, rng)
    halves, quarters = (measure_draws(measure_half, draws) for draws in (drawn, halve_again(drawn)))
    spread = Spread.of_shrinking(halves, quarters)
    interval = spread and spread.interval(value, (0.0, 1.0))
    covers = spread_at(used) if interval else no_interval("it needs resamples=2 or more")
    return Score("sap", compat or "linear-svm", value, used, interval, details=details, covers=covers)


def _refuse_constant(columns: Sequence[FactorColumn], rows: np.ndarray) -> None:
    """Raise if a continuous factor has one value in the training rows, so that it has no correlation."""
    for column in columns:
        if column.size is None and np.ptp(column.values[rows]) == 0:
            raise DataError(f"Factor {column.name} has only one value in the training rows; leave it out.")


class _Prediction:
    """The training and test rows of a score, sorted once, to be measured many times."""

    def __init__(self, values: np.ndarray, columns: Sequence[FactorColumn], rows: TrainTestRows) -> None:
        self.discrete = [k for k, column in enumerate(columns) if column.size is not None]
        self.real = [k for k, column in enumerate(columns) if column.size is None]
        self.codes, self.targets = values[rows.train], [columns[k].values[rows.train] for k in self.real]
        if self.discrete:
            labels = np.stack([columns[k].values for k in self.discrete], axis=1)
            self.train, self.test = (SortedTable.of(values[part], labels[part]) for part in rows)

    def measure(self, of_train: np.ndarray, of_test: np.ndarray) -> np.ndarray:
        """Return S [latents, factors] of some of the rows: test accuracies, or squared correlations of real factors.

        Against the penalty, a part of the training rows counts as much as all of them.
        """
        scores = np.empty((self.codes.shape[1], len(self.discrete) + len(self.real)))
        if self.discrete:
            copies, test = len(self.codes) / max(1, len(of_train)), self.test.select(of_test)
            predicted = fit_lines(self.train.select(of_train), C=copies * PENALTY).predict(test)
            scores[:, self.discrete] = (predicted == test.ascending_labels()).mean(2).T
        if self.real:
            targets = np.stack([target[of_train] for target in self.targets], axis=1)
            scores[:, self.real] = _square_correlations(self.codes[of_train], targets)
        return scores


def _square_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return r^2 [latents, factors]; 0 for a constant latent."""
    x, y = ((z - z.mean(0)) / np.where(np.ptp(z, 0) > 0, z.std(0) + 1e-300, 1.0) for z in (x, y))
    return ((x.T @ y / len(x)) ** 2).clip(0, 1)


def _compute_gaps(scores: np.ndarray) -> np.ndarray:
    """Return the best minus the second best latent [..., factors] of scores [..., latents, factors]."""
    ordered = np.sort(scores, axis=-2)
    return ordered[..., -1, :] - ordered[..., -2, :]
